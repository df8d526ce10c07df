/* Two processes exchange data by every protocol of libucp and check the contents: tags, active
 * messages, streams, puts, gets and atomics, over the transports that UCX_TLS selects. The sizes
 * reach from short messages to rendezvous. Prints "contents are right".
 *
 * usage: contents LARGEST
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#define DEADLINE 120
#define AM_ID 3
#define ADDS 50

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "contents: %s failed, line %d\n", #what, __LINE__); exit(1); } } while (0)
#define OK(call) CHECK((call) == UCS_OK)

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static int side, channel;
static time_t end;

/* What the other side reads and writes. */
struct window {
    uint64_t word, swapped, compared;
    uint32_t half, pad;
    uint8_t bytes[];
};

static void progress(void)
{
    ucp_worker_progress(worker);
    CHECK(time(NULL) < end);
}

static void wait_for(void *request)
{
    if (request == NULL) {
        return;
    }
    CHECK(!UCS_PTR_IS_ERR(request));
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
        progress();
    }
    OK(status);
    ucp_request_free(request);
}

static void flush(void)
{
    ucp_request_param_t none = {0};
    wait_for(ucp_ep_flush_nbx(ep, &none));
}

/* Gives bytes to the other side and takes as many from it, while both make progress. */
static void exchange(const void *own, void *other, size_t length)
{
    CHECK(write(channel, own, length) == (ssize_t)length);
    for (size_t got = 0; got < length;) {
        struct pollfd readable = {.fd = channel, .events = POLLIN};
        if (poll(&readable, 1, 0) > 0) {
            ssize_t part = read(channel, (char *)other + got, length - got);
            CHECK(part > 0);
            got += part;
        }
        if (worker != NULL) {
            progress();
        }
    }
}

static void barrier(void)
{
    char own = 1, other = 0;
    exchange(&own, &other, 1);
    CHECK(other == 1);
}

/* The bytes that a side sends. */
static uint8_t byte_of(int from, size_t size, size_t at)
{
    return (uint8_t)(at * 7 + (at >> 8) * 3 + size + from * 101);
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size; ++at) {
        bytes[at] = byte_of(side, size, at);
    }
}

static void check(const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size; ++at) {
        CHECK(bytes[at] == byte_of(!side, size, at));
    }
}

static void tags(uint8_t *out, uint8_t *in, size_t size)
{
    ucp_request_param_t none = {0};
    ucp_tag_t tag = size * 2 + side;
    fill(out, size);
    memset(in, 0, size);
    void *received = ucp_tag_recv_nbx(worker, in, size, size * 2 + !side, UINT64_MAX, &none);
    void *sent = ucp_tag_send_nbx(ep, out, size, tag, &none);
    wait_for(sent);
    wait_for(received);
    check(in, size);
}

static void streams(uint8_t *out, uint8_t *in, size_t size)
{
    ucp_request_param_t none = {0};
    ucp_request_param_t all = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_STREAM_RECV_FLAG_WAITALL};
    size_t length = 0;
    fill(out, size);
    memset(in, 0, size);
    void *received = ucp_stream_recv_nbx(ep, in, size, &length, &all);
    wait_for(ucp_stream_send_nbx(ep, out, size, &none));
    wait_for(received);
    check(in, size);
}

static uint8_t *am_target;
static size_t am_size;
static int am_arrived;
static void *am_fetch;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    uint64_t size;
    (void)arg;
    CHECK(header_length == sizeof(size));
    memcpy(&size, header, sizeof(size));
    CHECK(size == am_size && length == am_size);
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        ucp_request_param_t none = {0};
        am_fetch = ucp_am_recv_data_nbx(worker, data, am_target, length, &none);
    } else {
        memcpy(am_target, data, length);
    }
    am_arrived = 1;
    return UCS_OK;
}

static void messages(uint8_t *out, uint8_t *in, size_t size)
{
    ucp_request_param_t none = {0};
    uint64_t header = size;
    fill(out, size);
    memset(in, 0, size);
    am_target = in;
    am_size = size;
    am_arrived = 0;
    am_fetch = NULL;
    barrier();
    void *sent = ucp_am_send_nbx(ep, AM_ID, &header, sizeof(header), out, size, &none);
    while (!am_arrived) {
        progress();
    }
    wait_for(am_fetch);
    wait_for(sent);
    check(in, size);
}

static void rma(uint8_t *out, uint8_t *in, size_t size, struct window *own, uint64_t remote, ucp_rkey_h rkey)
{
    ucp_request_param_t none = {0};
    uint64_t to = remote + offsetof(struct window, bytes);
    memset(own->bytes, 0, size);
    fill(out, size);
    barrier();
    wait_for(ucp_put_nbx(ep, out, size, to, rkey, &none));
    flush();
    barrier();
    check(own->bytes, size);
    /* The other side sees its own bytes where this one has put them. */
    memset(in, 0, size);
    wait_for(ucp_get_nbx(ep, in, size, to, rkey, &none));
    flush();
    CHECK(memcmp(in, out, size) == 0);
    barrier();
}

static void atomic(ucp_atomic_op_t op, const void *value, void *reply, size_t width, uint64_t remote, ucp_rkey_h rkey)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE, .datatype = ucp_dt_make_contig(width)};
    if (reply != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.reply_buffer = reply;
    }
    wait_for(ucp_atomic_op_nbx(ep, op, value, 1, remote, rkey, &param));
}

static void atomics(struct window *own, uint64_t remote, ucp_rkey_h rkey)
{
    uint64_t word = remote + offsetof(struct window, word), fetched, value = 3;
    uint32_t half_fetched, half_value = 5;
    own->word = 1000 + side;
    own->swapped = 2000 + side;
    own->compared = 3000 + side;
    own->half = 4000 + side;
    barrier();
    for (int at = 0; at < ADDS; ++at) {
        atomic(UCP_ATOMIC_OP_ADD, &value, &fetched, 8, word, rkey);
        CHECK(fetched == 1000 + (uint64_t)!side + at * 3);
        atomic(UCP_ATOMIC_OP_ADD, &half_value, &half_fetched, 4, remote + offsetof(struct window, half), rkey);
        CHECK(half_fetched == 4000 + (uint32_t)!side + at * 5);
    }
    for (int at = 0; at < ADDS; ++at) {
        atomic(UCP_ATOMIC_OP_ADD, &value, NULL, 8, word, rkey);
    }
    value = 77 + side;
    atomic(UCP_ATOMIC_OP_SWAP, &value, &fetched, 8, remote + offsetof(struct window, swapped), rkey);
    CHECK(fetched == 2000 + (uint64_t)!side);
    /* The value is what is expected, and the reply buffer what is stored if it is there. */
    uint64_t compared = remote + offsetof(struct window, compared), expected = 3000 + !side;
    fetched = 88 + side;
    atomic(UCP_ATOMIC_OP_CSWAP, &expected, &fetched, 8, compared, rkey);
    CHECK(fetched == expected);
    fetched = 99;
    atomic(UCP_ATOMIC_OP_CSWAP, &expected, &fetched, 8, compared, rkey);
    CHECK(fetched == 88 + (uint64_t)side);
    flush();
    barrier();
    CHECK(own->word == 1000 + (uint64_t)side + 2 * ADDS * 3);
    CHECK(own->half == 4000 + (uint32_t)side + ADDS * 5);
    CHECK(own->swapped == 77 + (uint64_t)!side && own->compared == 88 + (uint64_t)!side);
    barrier();
}

static void connect_to_peer(void)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_STREAM | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64,
    };
    ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = AM_ID,
        .cb = on_am,
    };
    ucp_address_t *address;
    size_t length, other_length;
    OK(ucp_init(&params, NULL, &context));
    OK(ucp_worker_create(context, &worker_params, &worker));
    OK(ucp_worker_set_am_recv_handler(worker, &handler));
    OK(ucp_worker_get_address(worker, &address, &length));
    exchange(&length, &other_length, sizeof(length));
    CHECK(other_length < 1 << 16);
    /* Both have the same length of buffer, and the rest of it is not used. */
    uint8_t own[1 << 16] = {0}, other[1 << 16];
    memcpy(own, address, length);
    exchange(own, other, sizeof(own) / 8);
    CHECK(length <= sizeof(own) / 8 && other_length <= sizeof(own) / 8);
    ucp_worker_release_address(worker, address);
    ucp_ep_params_t ep_params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = (const ucp_address_t *)other,
    };
    OK(ucp_ep_create(worker, &ep_params, &ep));
}

static void run(size_t largest)
{
    connect_to_peer();
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = sizeof(struct window) + largest,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucp_mem_h mem;
    void *packed;
    size_t packed_length, other_length;
    uint8_t own_key[4096] = {0}, other_key[4096];
    uint64_t own_address, remote;
    ucp_rkey_h rkey;
    OK(ucp_mem_map(context, &map, &mem));
    OK(ucp_mem_query(mem, &attr));
    struct window *window = attr.address;
    OK(ucp_rkey_pack(context, mem, &packed, &packed_length));
    CHECK(packed_length <= sizeof(own_key));
    memcpy(own_key, packed, packed_length);
    ucp_rkey_buffer_release(packed);
    own_address = (uintptr_t)window;
    exchange(&packed_length, &other_length, sizeof(packed_length));
    exchange(own_key, other_key, sizeof(own_key));
    exchange(&own_address, &remote, sizeof(own_address));
    OK(ucp_ep_rkey_unpack(ep, other_key, &rkey));

    uint8_t *out = malloc(largest), *in = malloc(largest);
    CHECK(out != NULL && in != NULL);
    const size_t sizes[] = {1, 8, 100, 3000, 20000, largest};
    for (size_t at = 0; at < sizeof(sizes) / sizeof(sizes[0]); ++at) {
        size_t size = sizes[at] < largest ? sizes[at] : largest;
        tags(out, in, size);
        /* From memory that libucp allocated. */
        tags(window->bytes, in, size);
        streams(out, in, size);
        messages(out, in, size);
        rma(out, in, size, window, remote, rkey);
    }
    atomics(window, remote, rkey);

    ucp_rkey_destroy(rkey);
    flush();
    barrier();
    ucp_request_param_t none = {0};
    void *closing = ucp_ep_close_nbx(ep, &none);
    wait_for(closing);
    barrier();
    OK(ucp_mem_unmap(context, mem));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    free(out);
    free(in);
}

int main(int count, char **words)
{
    int channels[2], status;
    CHECK(count == 2);
    end = time(NULL) + DEADLINE;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, channels) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    side = child == 0;
    channel = channels[side];
    close(channels[!side]);
    run(strtoul(words[1], NULL, 10));
    if (side) {
        return 0;
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("contents are right\n");
    return 0;
}
