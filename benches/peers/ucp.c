/* UCX's worker addresses and endpoints, in the forms of wireup/benches/connect.rs. Used by
 * `cargo xtask compare`.
 *
 * usage: ucp listen|connect PORT COUNT address|time|memory
 *
 * The client prints JSON: "bytes" of its address, or of resident memory for each of COUNT
 * endpoints; or "latency_typical_us" from creating an endpoint until its first message of 8 bytes
 * was delivered, the median of COUNT. The server reports each delivery by a byte over TCP. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

enum { PATIENCE = 60 };

static void fail(const char *what)
{
    fprintf(stderr, "ucp: %s\n", what);
    exit(1);
}

static void check(int good, const char *what)
{
    if (!good)
        fail(what);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The control connection. */
static int join(int listens, int port)
{
    int one = 1, control, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in place = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    check(listener >= 0, "socket");
    if (listens) {
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        check(!bind(listener, (void *)&place, sizeof place) && !listen(listener, 1), "listen");
        control = accept(listener, NULL, NULL);
        check(control >= 0, "accept");
        close(listener);
    } else {
        control = listener;
        check(!connect(control, (void *)&place, sizeof place), "connect");
    }
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return control;
}

static void send_all(int control, const void *bytes, size_t length)
{
    check(send(control, bytes, length, MSG_NOSIGNAL) == (ssize_t)length, "send");
}

static void receive_all(int control, void *bytes, size_t length)
{
    check(recv(control, bytes, length, MSG_WAITALL) == (ssize_t)length, "receive");
}

static void wait_for(ucp_worker_h worker, void *request, const char *what)
{
    double start = now();
    if (request == NULL)
        return;
    check(!UCS_PTR_IS_ERR(request), what);
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
        check(now() - start < PATIENCE, what);
    }
    check(ucp_request_check_status(request) == UCS_OK, what);
    ucp_request_free(request);
}

/* Makes progress until the other side has reported so many deliveries. */
static void await_reports(ucp_worker_h worker, int control, size_t count)
{
    double start = now();
    char byte;
    while (count > 0) {
        ssize_t got = recv(control, &byte, 1, MSG_DONTWAIT);
        if (got == 1)
            count--;
        else
            check(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK), "the other side ended");
        ucp_worker_progress(worker);
        check(now() - start < PATIENCE, "a delivery");
    }
}

static ucp_ep_h open_endpoint(ucp_worker_h worker, const ucp_address_t *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    ucp_ep_h endpoint;
    check(ucp_ep_create(worker, &params, &endpoint) == UCS_OK, "ucp_ep_create");
    return endpoint;
}

static void *send_word(ucp_ep_h endpoint, const uint64_t *word)
{
    ucp_request_param_t param = {0};
    return ucp_tag_send_nbx(endpoint, word, sizeof *word, 1, &param);
}

static void close_endpoint(ucp_worker_h worker, ucp_ep_h endpoint)
{
    ucp_request_param_t param = {0};
    wait_for(worker, ucp_ep_close_nbx(endpoint, &param), "ucp_ep_close_nbx");
}

static long resident(void)
{
    long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    check(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2, "/proc/self/statm");
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Receives COUNT messages and reports each; then makes progress until the client ends. */
static void serve(ucp_worker_h worker, int control, size_t count)
{
    double start = now();
    char byte;
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        ucp_request_param_t param = {0};
        wait_for(worker, ucp_tag_recv_nbx(worker, &word, sizeof word, 1, ~0ull, &param), "a message");
        send_all(control, "", 1);
    }
    while (recv(control, &byte, 1, MSG_DONTWAIT) < 0) {
        ucp_worker_progress(worker);
        check(now() - start < PATIENCE, "the end");
    }
}

static void measure_time(ucp_worker_h worker, int control, const ucp_address_t *peer, size_t count)
{
    double *times = calloc(count, sizeof *times);
    uint64_t word = 7;
    for (size_t i = 0; i < count; i++) {
        double start = now();
        ucp_ep_h endpoint = open_endpoint(worker, peer);
        void *request = send_word(endpoint, &word);
        await_reports(worker, control, 1);
        times[i] = (now() - start) * 1e6;
        wait_for(worker, request, "the send");
        close_endpoint(worker, endpoint);
    }
    qsort(times, count, sizeof *times, by_value);
    printf("{\"latency_typical_us\": %.3f}\n", times[count / 2]);
    free(times);
}

static void measure_memory(
    ucp_worker_h worker, int control, const ucp_address_t *peer, size_t count)
{
    ucp_ep_h *endpoints = calloc(count, sizeof *endpoints);
    uint64_t word = 7;
    long before = 0;
    for (size_t i = 0; i < count; i++) {
        endpoints[i] = open_endpoint(worker, peer);
        void *request = send_word(endpoints[i], &word);
        await_reports(worker, control, 1);
        wait_for(worker, request, "the send");
        /* The first one pays for what all share. */
        if (i == 0)
            before = resident();
    }
    printf("{\"bytes\": %ld}\n", (resident() - before) / (long)(count - 1));
    for (size_t i = 0; i < count; i++)
        close_endpoint(worker, endpoints[i]);
    free(endpoints);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        fail("usage: ucp listen|connect PORT COUNT address|time|memory");
    int listens = !strcmp(argv[1], "listen"), control = join(listens, atoi(argv[2]));
    size_t count = strtoul(argv[3], NULL, 10);
    check(count > 1, "COUNT is at least 2");

    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO64};
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t length;
    check(ucp_init(&params, NULL, &context) == UCS_OK, "ucp_init");
    check(ucp_worker_create(context, &worker_params, &worker) == UCS_OK, "ucp_worker_create");
    check(ucp_worker_get_address(worker, &address, &length) == UCS_OK, "ucp_worker_get_address");

    if (!strcmp(argv[4], "address")) {
        if (!listens)
            printf("{\"bytes\": %zu}\n", length);
    } else if (listens) {
        uint32_t prefix = length;
        send_all(control, &prefix, sizeof prefix);
        send_all(control, address, length);
        serve(worker, control, count);
    } else {
        uint32_t prefix;
        receive_all(control, &prefix, sizeof prefix);
        void *peer = malloc(prefix);
        check(peer != NULL && prefix < 1 << 20, "the peer's address");
        receive_all(control, peer, prefix);
        if (!strcmp(argv[4], "time"))
            measure_time(worker, control, peer, count);
        else
            measure_memory(worker, control, peer, count);
        free(peer);
    }
    fflush(stdout);
    close(control);
    ucp_worker_release_address(worker, address);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
