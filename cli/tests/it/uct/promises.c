/* What libucp expects of its transports, with two workers of one process, so that the program decides
   which of them makes progress. Usage: promises flush | silent | order SIZE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

static ucp_context_h context[2];
static ucp_worker_h worker[2];
static ucp_ep_h ep;

static void fail(const char *what, ucs_status_t status)
{
    printf("%s: %s\n", what, ucs_status_string(status));
    exit(1);
}

static void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK) {
        fail(what, status);
    }
}

/* Waits for a request with progress of so many workers. */
static void finish(const char *what, void *request, int workers)
{
    ucs_status_t status;
    time_t end = time(NULL) + 20;

    if (!UCS_PTR_IS_PTR(request)) {
        return check(what, UCS_PTR_STATUS(request));
    }
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        for (int i = 0; i < workers; i++) {
            ucp_worker_progress(worker[i]);
        }
        if (time(NULL) > end) {
            fail(what, UCS_ERR_TIMED_OUT);
        }
    }
    ucp_request_free(request);
    check(what, status);
}

static void start(uint64_t features)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = features};
    ucp_worker_params_t plain = {0};
    ucp_ep_params_t peer = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *address;
    size_t length;

    for (int i = 0; i < 2; i++) {
        check("init", ucp_init(&params, NULL, &context[i]));
        check("worker", ucp_worker_create(context[i], &plain, &worker[i]));
    }
    check("address", ucp_worker_get_address(worker[1], &address, &length));
    peer.address = address;
    check("endpoint", ucp_ep_create(worker[0], &peer, &ep));
    ucp_worker_release_address(worker[1], address);
}

/* Memory of the second worker, and the key of the first one to it. */
static ucp_rkey_h expose(void *memory, size_t length)
{
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                              UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .address    = memory,
                                .length     = length};
    ucp_mem_h handle;
    ucp_rkey_h key;
    void *packed;
    size_t size;

    check("map", ucp_mem_map(context[1], &map, &handle));
    check("pack", ucp_rkey_pack(context[1], handle, &packed, &size));
    check("unpack", ucp_ep_rkey_unpack(ep, packed, &key));
    ucp_rkey_buffer_release(packed);
    return key;
}

/* Many puts, and a flush of the worker: it waits, whatever its transports have no room for. */
static void flush(void)
{
    enum { COUNT = 3000, SIZE = 24 };
    static unsigned char source[COUNT][SIZE], target[COUNT][SIZE];
    ucp_request_param_t none = {0};
    ucp_rkey_h key;

    start(UCP_FEATURE_RMA);
    key = expose(target, sizeof(target));
    for (int round = 1; round <= 3; round++) {
        memset(source, round, sizeof(source));
        for (int i = 0; i < COUNT; i++) {
            void *put = ucp_put_nbx(ep, source[i], SIZE, (uintptr_t)target[i], key, &none);

            if (UCS_PTR_IS_ERR(put)) {
                fail("put", UCS_PTR_STATUS(put));
            } else if (put != NULL) {
                ucp_request_free(put);
            }
        }
        finish("flush of the worker", ucp_worker_flush_nbx(worker[0], &none), 2);
        if (memcmp(source, target, sizeof(source)) != 0) {
            fail("contents", UCS_ERR_IO_ERROR);
        }
    }
}

/* A message arrives. Then its receiver makes no progress, and the sender's flush and close end. */
static void silent(void)
{
    ucp_request_param_t none = {0}, close = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS};
    int sent = 0x1234567, received = 0;
    void *receive, *send;

    start(UCP_FEATURE_TAG);
    receive = ucp_tag_recv_nbx(worker[1], &received, sizeof(received), 1, -1, &none);
    send    = ucp_tag_send_nbx(ep, &sent, sizeof(sent), 1, &none);
    finish("receive", receive, 2);
    if (received != sent) {
        fail("contents", UCS_ERR_IO_ERROR);
    }
    finish("send", send, 1);
    finish("flush of the endpoint", ucp_ep_flush_nbx(ep, &none), 1);
    finish("flush of the worker", ucp_worker_flush_nbx(worker[0], &none), 1);
    close.flags = 0;
    finish("close", ucp_ep_close_nbx(ep, &close), 1);
}

/* A get, a fence and a put of the same memory: the get returns what was there before. */
static void order(size_t size)
{
    enum { ROUNDS = 20 };
    unsigned char *target = malloc(size), *got = malloc(size), *put = malloc(size);
    ucp_request_param_t none = {0};
    ucp_rkey_h key;

    start(UCP_FEATURE_RMA);
    key = expose(target, size);
    finish("first flush", ucp_ep_flush_nbx(ep, &none), 2);
    memset(put, 2, size);
    for (int round = 0; round < ROUNDS; round++) {
        void *requests[2];

        memset(target, 1, size);
        memset(got, 9, size);
        requests[0] = ucp_get_nbx(ep, got, size, (uintptr_t)target, key, &none);
        check("fence", ucp_worker_fence(worker[0]));
        requests[1] = ucp_put_nbx(ep, put, size, (uintptr_t)target, key, &none);
        finish("get", requests[0], 2);
        finish("put", requests[1], 2);
        finish("flush", ucp_ep_flush_nbx(ep, &none), 2);
        for (size_t i = 0; i < size; i++) {
            if (got[i] != 1) {
                printf("byte %zu of the get is %d\n", i, got[i]);
                exit(1);
            }
        }
        if (memcmp(target, put, size) != 0) {
            fail("contents", UCS_ERR_IO_ERROR);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "flush") == 0) {
        flush();
    } else if (argc > 1 && strcmp(argv[1], "silent") == 0) {
        silent();
    } else if (argc > 2) {
        order(atol(argv[2]));
    } else {
        return 2;
    }
    puts("promises are kept");
    return 0;
}
