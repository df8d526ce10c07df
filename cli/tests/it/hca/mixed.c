/* Random UCT operations of mixed sizes from an interface to itself, until rings have wrapped many
 * times, with the memory compared against a copy after every batch.
 *
 * usage: mixed TRANSPORT DEVICE OPERATIONS
 *
 * Prints "memory is right" at the end. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "mixed: %s failed (line %d)\n", #what, __LINE__); exit(1); } } while (0)
#define OK(call) CHECK((call) == UCS_OK)

enum { HALF = 8192, BATCH = 24, LONGEST = 3000 };

static uct_md_h md;
static uct_component_h component;
static uct_iface_h iface;
static uct_iface_attr_t limits;
static uct_worker_h worker;
static uct_ep_h endpoint;
static uct_mem_h handle;
static uct_rkey_bundle_t key;
/* The first half is written to by operations, the second one is what they send from. */
static uint8_t *memory, copy[HALF], scratch[LONGEST];
static uct_completion_t completion;
static unsigned long sent, received, seed = 12345;

static size_t below(size_t limit)
{
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (seed >> 33) % limit;
}

static size_t smaller(size_t one, size_t other) { return one < other ? one : other; }

static uint8_t *source(size_t length) { return memory + HALF + below(HALF - length); }

static size_t pack(void *to, void *from)
{
    const uct_iov_t *range = from;
    memcpy(to, range->buffer, range->length);
    return range->length;
}

static void unpack(void *to, const void *data, size_t length) { memcpy(to, data, length); }

/* Every message starts with its length. */
static ucs_status_t on_message(void *argument, void *data, size_t length, unsigned flags)
{
    uint64_t header;
    (void)argument, (void)flags;
    CHECK(length >= sizeof header);
    memcpy(&header, data, sizeof header);
    CHECK(header == length);
    ++received;
    return UCS_OK;
}

static void on_completion(uct_completion_t *self) { (void)self; }

static void open_domain(const char *transport, const char *device)
{
    uct_component_h *components;
    unsigned count;
    OK(uct_query_components(&components, &count));
    for (unsigned at = 0; at < count; ++at) {
        uct_component_attr_t found = {.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT};
        OK(uct_component_query(components[at], &found));
        found.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
        found.md_resources = calloc(found.md_resource_count + 1, sizeof *found.md_resources);
        OK(uct_component_query(components[at], &found));
        for (unsigned domain = 0; domain < found.md_resource_count; ++domain) {
            uct_md_config_t *config;
            uct_tl_resource_desc_t *resources;
            unsigned resource_count;
            OK(uct_md_config_read(components[at], NULL, NULL, &config));
            if (uct_md_open(components[at], found.md_resources[domain].md_name, config, &md) != UCS_OK)
                continue;
            OK(uct_md_query_tl_resources(md, &resources, &resource_count));
            for (unsigned one = 0; one < resource_count; ++one)
                if (!strcmp(resources[one].tl_name, transport) && !strcmp(resources[one].dev_name, device)) {
                    component = components[at];
                    return;
                }
            uct_md_close(md);
        }
    }
    CHECK(!"the transport exists");
}

static void open_interface(const char *transport, const char *device)
{
    ucs_async_context_t *async;
    uct_iface_config_t *config;
    uct_iface_params_t wanted = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
        .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode.device = {.tl_name = transport, .dev_name = device},
    };
    OK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async));
    OK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker));
    OK(uct_md_iface_config_read(md, transport, NULL, NULL, &config));
    OK(uct_iface_open(md, worker, &wanted, config, &iface));
    OK(uct_iface_set_am_handler(iface, 1, on_message, NULL, 0));
    uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    OK(uct_iface_query(iface, &limits));
}

static void create_endpoint(void)
{
    uct_device_addr_t *device = malloc(limits.device_addr_len + 1);
    OK(uct_iface_get_device_address(iface, device));
    if (limits.cap.flags & UCT_IFACE_FLAG_CONNECT_TO_IFACE) {
        uct_iface_addr_t *address = malloc(limits.iface_addr_len + 1);
        OK(uct_iface_get_address(iface, address));
        uct_ep_params_t wanted = {
            .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR,
            .iface = iface, .dev_addr = device, .iface_addr = address,
        };
        OK(uct_ep_create(&wanted, &endpoint));
        return;
    }
    uct_ep_params_t wanted = {.field_mask = UCT_EP_PARAM_FIELD_IFACE, .iface = iface};
    uct_ep_h peer;
    uct_ep_addr_t *address = malloc(limits.ep_addr_len + 1);
    OK(uct_ep_create(&wanted, &endpoint));
    OK(uct_ep_create(&wanted, &peer));
    OK(uct_ep_get_address(peer, address));
    OK(uct_ep_connect_to_ep(endpoint, device, address));
    OK(uct_ep_get_address(endpoint, address));
    OK(uct_ep_connect_to_ep(peer, device, address));
}

/* Repeats a post until there is room. */
#define POST(result, call) do { while (((result) = (call)) == UCS_ERR_NO_RESOURCE) uct_worker_progress(worker); CHECK((result) >= 0); } while (0)

static void flush(void)
{
    ucs_status_t status;
    while ((status = uct_ep_flush(endpoint, 0, NULL)) != UCS_OK) {
        CHECK(status == UCS_INPROGRESS || status == UCS_ERR_NO_RESOURCE);
        uct_worker_progress(worker);
    }
}

static void message(int kind)
{
    uint64_t header = sizeof header;
    ssize_t result;
    uct_iov_t range = {.memh = handle, .count = 1};
    if (kind == 0) {
        size_t length = below(smaller(limits.cap.am.max_short - sizeof header, 90));
        header += length;
        POST(result, uct_ep_am_short(endpoint, 1, header, source(length), length));
    } else if (kind == 1) {
        static uint8_t whole[LONGEST];
        range.length = sizeof header + below(smaller(limits.cap.am.max_bcopy, 1000) - sizeof header);
        header = range.length;
        range.buffer = memcpy(whole, &header, sizeof header);
        POST(result, uct_ep_am_bcopy(endpoint, 1, pack, &range, 0));
    } else {
        range.length = 1 + below(500);
        range.buffer = source(range.length);
        header += range.length;
        POST(result, uct_ep_am_zcopy(endpoint, 1, &header, sizeof header, &range, 1, 0, &completion));
    }
    ++sent;
}

static void operation(int kind)
{
    size_t most[] = {limits.cap.put.max_short, limits.cap.put.max_bcopy, LONGEST};
    ssize_t result;
    if (kind < 3) {
        size_t length = 1 + below(smaller(most[kind], LONGEST)), at = below(HALF - length);
        uct_iov_t range = {.buffer = source(length), .length = length, .memh = handle, .count = 1};
        memcpy(copy + at, range.buffer, length);
        uint64_t remote = (uintptr_t)memory + at;
        switch (kind) {
        case 0: POST(result, uct_ep_put_short(endpoint, range.buffer, length, remote, key.rkey)); break;
        case 1: POST(result, uct_ep_put_bcopy(endpoint, pack, &range, remote, key.rkey)); break;
        default: POST(result, uct_ep_put_zcopy(endpoint, &range, 1, remote, key.rkey, &completion));
        }
    } else if (kind == 3) {
        uint64_t word, add = below(1 << 20);
        size_t at = 8 * below(HALF / 8);
        memcpy(&word, copy + at, 8);
        word += add;
        memcpy(copy + at, &word, 8);
        POST(result, uct_ep_atomic64_post(endpoint, UCT_ATOMIC_OP_ADD, add, (uintptr_t)memory + at, key.rkey));
    } else if (kind == 4) {
        static uint64_t before;
        uint64_t want, add = below(1 << 20);
        size_t at = 8 * below(HALF / 8);
        flush();
        memcpy(&want, copy + at, 8);
        POST(result, uct_ep_atomic64_fetch(endpoint, UCT_ATOMIC_OP_ADD, add, &before, (uintptr_t)memory + at, key.rkey, &completion));
        flush();
        CHECK(before == want);
        want += add;
        memcpy(copy + at, &want, 8);
    } else {
        size_t length = 1 + below(smaller(limits.cap.get.max_bcopy, 1000)), at = below(HALF - length);
        flush();
        POST(result, uct_ep_get_bcopy(endpoint, unpack, scratch, length, (uintptr_t)memory + at, key.rkey, &completion));
        flush();
        CHECK(!memcmp(scratch, copy + at, length));
    }
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    open_domain(arguments[1], arguments[2]);
    open_interface(arguments[1], arguments[2]);
    create_endpoint();
    memory = aligned_alloc(4096, 2 * HALF);
    for (size_t at = 0; at < 2 * HALF; ++at)
        memory[at] = (uint8_t)below(256);
    memcpy(copy, memory, HALF);
    uct_md_attr_t domain;
    OK(uct_md_query(md, &domain));
    OK(uct_md_mem_reg(md, memory, 2 * HALF, UCT_MD_MEM_ACCESS_ALL, &handle));
    int only_messages = !(limits.cap.flags & UCT_IFACE_FLAG_PUT_SHORT);
    if (!only_messages) {
        void *packed = malloc(domain.rkey_packed_size + 1);
        OK(uct_md_mkey_pack(md, handle, packed));
        OK(uct_rkey_unpack(component, packed, &key));
    }
    /* It never reaches zero. */
    completion = (uct_completion_t){.func = on_completion, .count = 1 << 30, .status = UCS_OK};
    for (long done = 1; done <= atol(arguments[3]); ++done) {
        int kind = (int)below(only_messages ? 3 : 9);
        if (kind < 3)
            message(kind);
        else
            operation(kind - 3);
        if (done % BATCH == 0) {
            flush();
            CHECK(!memcmp(memory, copy, HALF));
        }
    }
    flush();
    while (received < sent)
        uct_worker_progress(worker);
    CHECK(received == sent && completion.status == UCS_OK && !memcmp(memory, copy, HALF));
    printf("memory is right, %lu messages\n", received);
    return 0;
}
