/* Programs of librdmacm, by the first argument. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Waits for an event. */
static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
    struct rdma_cm_event *event;
    enum rdma_cm_event_type type;

    if (rdma_get_cm_event(channel, &event) != 0) {
        fail("rdma_get_cm_event");
    }
    type = event->event;
    if (id != NULL) {
        *id = event->id;
    }
    rdma_ack_cm_event(event);
    return type;
}

static void expect(struct rdma_event_channel *channel, struct rdma_cm_id **id,
                   enum rdma_cm_event_type wanted)
{
    enum rdma_cm_event_type type = next(channel, id);

    if (type != wanted) {
        printf("%s instead of %s\n", rdma_event_str(type), rdma_event_str(wanted));
        exit(1);
    }
}

static void make_queue_pair(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};

    if (rdma_create_qp(id, NULL, &init) != 0) {
        fail("rdma_create_qp");
    }
}

/* Connects to a port of this machine. Returns the event that ends the attempt. */
static enum rdma_cm_event_type connect_to(struct rdma_event_channel *channel, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *id;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0 ||
        rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) != 0) {
        fail("rdma_resolve_addr");
    }
    expect(channel, NULL, RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(id, 2000) != 0) {
        fail("rdma_resolve_route");
    }
    expect(channel, NULL, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_queue_pair(id);
    if (rdma_connect(id, &parameters) != 0) {
        fail("rdma_connect");
    }
    return next(channel, NULL);
}

/* Listens, forks, accepts a connection, and waits for the signal that ends it. Writes its port, and
 * the child that survives it. */
static void serve(int to)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct rdma_conn_param parameters = {.rnr_retry_count = 7};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *id;
    int numbers[2];

    if (channel == NULL || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) != 0 ||
        rdma_bind_addr(listener, (struct sockaddr *)&any) != 0 || rdma_listen(listener, 1) != 0) {
        fail("rdma_listen");
    }
    numbers[0] = ntohs(rdma_get_src_port(listener));
    write(to, numbers, sizeof(numbers[0]));
    expect(channel, &id, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_queue_pair(id);
    if (rdma_accept(id, &parameters) != 0) {
        fail("rdma_accept");
    }
    expect(channel, NULL, RDMA_CM_EVENT_ESTABLISHED);
    /* The processes of both ends know each other now: a child inherits sockets to the peer. */
    sleep(1);
    numbers[1] = fork();
    if (numbers[1] != 0) {
        write(to, &numbers[1], sizeof(numbers[1]));
    }
    for (;;) {
        pause();
    }
}

/* The peer of a killed process is disconnected although a child of that process lives. */
static void forked(void)
{
    struct rdma_event_channel *channel;
    int ends[2], server, port, child;

    if (pipe(ends) != 0) {
        fail("pipe");
    }
    server = fork();
    if (server == 0) {
        serve(ends[1]);
    }
    if (read(ends[0], &port, sizeof(port)) != sizeof(port)) {
        fail("the port");
    }
    channel = rdma_create_event_channel();
    if (channel == NULL || connect_to(channel, port) != RDMA_CM_EVENT_ESTABLISHED) {
        fail("no connection");
    }
    if (read(ends[0], &child, sizeof(child)) != sizeof(child)) {
        fail("the child");
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    expect(channel, NULL, RDMA_CM_EVENT_DISCONNECTED);
    if (connect_to(channel, port) != RDMA_CM_EVENT_REJECTED) {
        puts("the listener is still there");
    }
    kill(child, SIGKILL);
    puts("disconnected");
}

/* Nobody reads standard error, which is full. */
static void unread(int port)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    int ends[2];

    if (channel == NULL || pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) {
        fail("pipe");
    }
    while (write(ends[1], "", 1) == 1) {
    }
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    if (connect_to(channel, port) == RDMA_CM_EVENT_REJECTED) {
        puts("rejected");
    }
}

int main(int count, char **arguments)
{
    /* Instead of a test that never ends. */
    alarm(100);
    if (count == 2 && strcmp(arguments[1], "forked") == 0) {
        forked();
    } else if (count == 3 && strcmp(arguments[1], "unread") == 0) {
        unread(atoi(arguments[2]));
    }
    return 0;
}
