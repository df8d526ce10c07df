/* One side of a connection by librdmacm, by the first argument; the second is the port. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 16

static char received[SIZE], sent[SIZE] = "message from C";
static struct ibv_mr *region, *source;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Returns an identifier with a queue pair, or a listener. */
static struct rdma_cm_id *endpoint(const char *port, int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *address;
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {2, 2, 1, 1, 0}, .sq_sig_all = 1};
    struct rdma_cm_id *id;

    if (rdma_getaddrinfo(flags & RAI_PASSIVE ? NULL : "127.0.0.1", (char *)port, &hints, &address)) {
        fail("rdma_getaddrinfo");
    }
    if (rdma_create_ep(&id, address, NULL, &init) != 0) {
        fail("rdma_create_ep");
    }
    rdma_freeaddrinfo(address);
    return id;
}

static void post_receive(struct rdma_cm_id *id)
{
    region = rdma_reg_msgs(id, received, SIZE);
    source = rdma_reg_msgs(id, sent, SIZE);
    if (region == NULL || source == NULL || rdma_post_recv(id, NULL, received, SIZE, region) != 0) {
        fail("rdma_post_recv");
    }
}

static void send_message(struct rdma_cm_id *id)
{
    struct ibv_wc done;

    if (rdma_post_send(id, NULL, sent, SIZE, source, 0) != 0 || rdma_get_send_comp(id, &done) != 1 ||
        done.status != IBV_WC_SUCCESS) {
        fail("the send");
    }
}

static void receive_message(struct rdma_cm_id *id)
{
    struct ibv_wc done;

    if (rdma_get_recv_comp(id, &done) != 1 || done.status != IBV_WC_SUCCESS) {
        fail("the receive");
    }
}

static void print(const char *what, struct rdma_cm_id *id)
{
    printf("%s: %s\n", what, (const char *)id->event->param.conn.private_data);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    struct rdma_conn_param values = {.private_data = "from C", .private_data_len = 7,
                                     .responder_resources = 3, .initiator_depth = 3,
                                     .retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *id, *listener;
    const char *what = arguments[1], *port = arguments[2];

    /* Instead of a test that never ends. */
    alarm(100);
    if (strcmp(what, "greet") == 0 || strcmp(what, "stay") == 0) {
        id = endpoint(port, 0);
        post_receive(id);
        if (rdma_connect(id, &values) != 0) {
            fail("rdma_connect");
        }
        if (strcmp(what, "stay") == 0) {
            pause();
        }
        print("accepted", id);
        send_message(id);
        receive_message(id);
        rdma_disconnect(id);
        return 0;
    }
    listener = endpoint(port, RAI_PASSIVE);
    if (rdma_listen(listener, 1) != 0 || rdma_get_request(listener, &id) != 0) {
        fail("rdma_get_request");
    }
    if (strcmp(what, "refuse") == 0) {
        return rdma_reject(id, "full", 5) != 0;
    }
    post_receive(id);
    print("requested", id);
    if (rdma_accept(id, &values) != 0) {
        fail("rdma_accept");
    }
    receive_message(id);
    send_message(id);
    rdma_disconnect(id);
    return 0;
}
