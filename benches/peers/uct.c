/* What a transport of UCX needs for an operation: N calls of one function, which callgrind counts (`cargo xtask
 * bench`) or which are timed in batches (`cargo xtask compare driver`).
 *
 * usage: uct TRANSPORT DEVICE OPERATION N
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uct/api/uct.h>

#include "stopwatch.h"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "uct: %s failed\n", #what); exit(1); } } while (0)
#define OK(call) CHECK((call) == UCS_OK)
#define DEADLINE 60

struct bench {
    uct_iface_h iface, peer_iface;
    uct_ep_h ep;
    uct_iov_t iov;
    uint64_t remote;
    uct_rkey_t rkey;
    uct_completion_t completion;
    char payload[64];
};

#define MEASURED __attribute__((noinline)) int

MEASURED measured_put_short_8(struct bench *b) { return uct_ep_put_short(b->ep, b->payload, 8, b->remote, b->rkey); }
MEASURED measured_am_short_8(struct bench *b) { return uct_ep_am_short(b->ep, 1, 42, b->payload, 8); }
MEASURED measured_put_zcopy(struct bench *b)
{
    return uct_ep_put_zcopy(b->ep, &b->iov, 1, b->remote, b->rkey, &b->completion);
}
MEASURED measured_progress(struct bench *b) { return uct_iface_progress(b->iface); }
/* The same calls where they find something. */
MEASURED measured_finish(struct bench *b) { return uct_iface_progress(b->iface); }
MEASURED measured_receive(struct bench *b) { return uct_iface_progress(b->peer_iface); }

static const struct { const char *name; int (*run)(struct bench *); } operations[] = {
    { "put_short_8", measured_put_short_8 }, { "am_short_8", measured_am_short_8 },
    { "put_zcopy", measured_put_zcopy }, { "progress", measured_progress },
    { "finish", measured_finish }, { "receive", measured_receive },
};

static int received;

static ucs_status_t on_message(void *arg, void *data, size_t length, unsigned flags)
{
    (void)arg; (void)data; (void)length; (void)flags;
    received++;
    return UCS_OK;
}

static void on_completion(uct_completion_t *self) { (void)self; }

/* Lets the device carry out what was posted, without progress. On a CPU of its own, it needs a few turns. */
static void settle(void)
{
    for (int i = 0; i < 300; i++)
        sched_yield();
}

/* The memory domain that has the transport on the device. */
static uct_md_h open_md(const char *transport, const char *device)
{
    uct_component_h *components;
    unsigned count;
    OK(uct_query_components(&components, &count));
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT };
        OK(uct_component_query(components[i], &attr));
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
        attr.md_resources = calloc(attr.md_resource_count, sizeof *attr.md_resources);
        OK(uct_component_query(components[i], &attr));
        for (unsigned j = 0; j < attr.md_resource_count; j++) {
            uct_md_config_t *config;
            uct_md_h md;
            OK(uct_md_config_read(components[i], NULL, NULL, &config));
            if (uct_md_open(components[i], attr.md_resources[j].md_name, config, &md) != UCS_OK)
                continue;
            uct_tl_resource_desc_t *resources;
            unsigned resource_count;
            OK(uct_md_query_tl_resources(md, &resources, &resource_count));
            for (unsigned k = 0; k < resource_count; k++)
                if (!strcmp(resources[k].tl_name, transport) && !strcmp(resources[k].dev_name, device))
                    return md;
            uct_md_close(md);
        }
    }
    return NULL;
}

static uct_ep_h create(uct_iface_h iface)
{
    uct_ep_params_t params = { .field_mask = UCT_EP_PARAM_FIELD_IFACE, .iface = iface };
    uct_ep_h ep;
    OK(uct_ep_create(&params, &ep));
    return ep;
}

static uct_ep_h create_to(uct_iface_h iface, uct_iface_h peer, const uct_iface_attr_t *attr)
{
    uct_ep_params_t params = {
        .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR,
        .iface = iface,
        .dev_addr = malloc(attr->device_addr_len),
        .iface_addr = malloc(attr->iface_addr_len),
    };
    uct_ep_h ep;
    OK(uct_iface_get_device_address(peer, (uct_device_addr_t *)params.dev_addr));
    OK(uct_iface_get_address(peer, (uct_iface_addr_t *)params.iface_addr));
    OK(uct_ep_create(&params, &ep));
    return ep;
}

static void join(uct_ep_h ep, uct_ep_h peer, const uct_device_addr_t *device, size_t length)
{
    uct_ep_addr_t *address = malloc(length);
    OK(uct_ep_get_address(peer, address));
    OK(uct_ep_connect_to_ep(ep, device, address));
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    int (*run)(struct bench *) = NULL;
    for (unsigned i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(operations[i].name, argv[3]))
            run = operations[i].run;
    CHECK(run);
    uct_md_h md = open_md(argv[1], argv[2]);
    CHECK(md);
    ucs_async_context_t *async;
    uct_worker_h worker;
    OK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async));
    OK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker));
    uct_iface_config_t *config;
    OK(uct_md_iface_config_read(md, argv[1], NULL, NULL, &config));
    uct_iface_params_t params = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
        .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode.device = { .tl_name = argv[1], .dev_name = argv[2] },
    };
    struct bench b;
    memset(&b, 0, sizeof b);
    uct_iface_h *ifaces[] = { &b.iface, &b.peer_iface };
    for (int i = 0; i < 2; i++) {
        OK(uct_iface_open(md, worker, &params, config, ifaces[i]));
        OK(uct_iface_set_am_handler(*ifaces[i], 1, on_message, NULL, 0));
        uct_iface_progress_enable(*ifaces[i], UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    }
    uct_iface_attr_t attr;
    OK(uct_iface_query(b.iface, &attr));
    uct_device_addr_t *device = malloc(attr.device_addr_len);
    OK(uct_iface_get_device_address(b.iface, device));
    if (attr.cap.flags & UCT_IFACE_FLAG_CONNECT_TO_EP) {
        b.ep = create(b.iface);
        uct_ep_h peer = create(b.peer_iface);
        join(b.ep, peer, device, attr.ep_addr_len);
        join(peer, b.ep, device, attr.ep_addr_len);
    } else {
        b.ep = create_to(b.iface, b.peer_iface, &attr);
    }

    uct_md_attr_t md_attr;
    OK(uct_md_query(md, &md_attr));
    void *memory = aligned_alloc(4096, 8192);
    uct_mem_h handle;
    if (md_attr.cap.flags & UCT_MD_FLAG_REG) {
        OK(uct_md_mem_reg(md, memory, 8192, UCT_MD_MEM_ACCESS_ALL, &handle));
    } else {
        /* Memory that other processes can map. */
        uct_allocated_memory_t allocated;
        OK(uct_iface_mem_alloc(b.peer_iface, 8192, UCT_MD_MEM_ACCESS_ALL, "bench", &allocated));
        memory = allocated.address;
        handle = allocated.memh;
    }
    void *packed = malloc(md_attr.rkey_packed_size);
    OK(uct_md_mkey_pack(md, handle, packed));
    uct_rkey_bundle_t bundle;
    uct_component_h component = NULL, *components;
    unsigned count;
    OK(uct_query_components(&components, &count));
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t name = { .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME };
        OK(uct_component_query(components[i], &name));
        if (!strcmp(name.name, md_attr.component_name))
            component = components[i];
    }
    CHECK(component);
    OK(uct_rkey_unpack(component, packed, &bundle));
    b.rkey = bundle.rkey;
    b.remote = (uintptr_t)memory;
    b.iov = (uct_iov_t){ .buffer = (char *)memory + 4096, .length = 4096, .memh = handle, .count = 1 };
    /* Never counted down to nothing. */
    b.completion = (uct_completion_t){ .func = on_completion, .count = 1 << 30, .status = UCS_OK };

    int is_progress = run == measured_progress, finishes = run == measured_finish, receives = run == measured_receive;
    int total = atoi(argv[4]);
    /* As in benches/mlx5_0/api.rs; the FIFO of shared memory has room for fewer. */
    int turn = strcmp(argv[1], "posix") ? 64 : 16;
    time_t end = time(NULL) + DEADLINE;
    struct stopwatch watch;
    stopwatch_open(&watch, total, turn);
    /* Shared memory connects while both ends make progress. */
    while (uct_ep_am_short(b.ep, 1, 42, b.payload, 8) == UCS_ERR_NO_RESOURCE) {
        uct_iface_progress(b.iface);
        uct_iface_progress(b.peer_iface);
        CHECK(time(NULL) < end);
    }
    while (uct_iface_progress(b.iface) + uct_iface_progress(b.peer_iface) || !received)
        CHECK(time(NULL) < end);
    for (int i = 0; i < total; i += turn) {
        if (finishes || receives) {
            for (int j = 0; j < turn; j++) {
                int status = finishes ? measured_put_zcopy(&b) : measured_am_short_8(&b);
                CHECK(status == UCS_OK || status == UCS_INPROGRESS);
            }
            settle();
        }
        int before = received, unfinished = b.completion.count, status = 0, calls = 0;
        stopwatch_start(&watch);
        /* A call takes one completion or message, or several. */
        if (receives)
            for (; received - before < turn && calls < 1000; calls++)
                run(&b);
        else if (finishes)
            for (; unfinished - b.completion.count < turn && calls < 1000; calls++)
                run(&b);
        else
            for (; calls < turn && status >= 0; calls++)
                status = run(&b);
        stopwatch_stop(&watch);
        if ((finishes || receives) && calls > turn) {
            /* The device was late. */
            stopwatch_discard(&watch);
            while (finishes ? unfinished - b.completion.count < turn : received - before < turn) {
                run(&b);
                sched_yield();
                CHECK(time(NULL) < end);
            }
            calls = 0;
        }
        CHECK(calls < 1000 && (is_progress ? status == 0 : status == UCS_OK || status == UCS_INPROGRESS));
        /* What was posted is carried out and received before there is more. */
        for (int rest = !is_progress; rest; ) {
            rest = uct_iface_progress(b.iface) + uct_iface_progress(b.peer_iface);
            if (!rest && uct_ep_flush(b.ep, 0, NULL) != UCS_OK) {
                /* The device wants the core, too. */
                sched_yield();
                rest = 1;
            }
            CHECK(time(NULL) < end);
        }
    }
    stopwatch_print(&watch);
    return 0;
}
