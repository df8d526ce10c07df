/* Sends one active message per mode (short, bcopy, zcopy) from one process to another over a
 * transport of UCT, and checks its contents. Prints a line per mode: "short: received", or "short:
 * not supported".
 *
 * usage: hello TRANSPORT DEVICE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <uct/api/uct.h>

#define DEADLINE 60
#define LENGTH 100
#define ID 7

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "hello: %s failed\n", #what); exit(1); } } while (0)
#define OK(call) CHECK((call) == UCS_OK)

enum { SHORT, BCOPY, ZCOPY, MODES };
static const char *names[MODES] = {"short", "bcopy", "zcopy"};
static const uint64_t flags[MODES] = {UCT_IFACE_FLAG_AM_SHORT, UCT_IFACE_FLAG_AM_BCOPY,
                                      UCT_IFACE_FLAG_AM_ZCOPY};
static int is_received;

static char byte_of(int at, int mode)
{
    return (char)(at * 31 + mode);
}

static ucs_status_t on_message(void *mode, void *data, size_t length, unsigned flags)
{
    CHECK(length == LENGTH);
    for (int at = 0; at < LENGTH; ++at) {
        CHECK(((char *)data)[at] == byte_of(at, *(int *)mode));
    }
    ++is_received;
    return UCS_OK;
}

static size_t pack(void *to, void *bytes)
{
    memcpy(to, bytes, LENGTH);
    return LENGTH;
}

static void on_completion(uct_completion_t *completion)
{
    OK(completion->status);
}

static uct_md_h open_md(const char *transport, const char *device)
{
    uct_component_h *components;
    unsigned count;

    OK(uct_query_components(&components, &count));
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME |
                                                   UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT};
        OK(uct_component_query(components[i], &attr));
        uct_md_resource_desc_t resources[attr.md_resource_count + 1];
        attr.md_resources = resources;
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
        OK(uct_component_query(components[i], &attr));
        for (unsigned j = 0; !strcmp(attr.name, transport) && j < attr.md_resource_count; j++) {
            uct_md_config_t *config;
            uct_md_h md;

            if (strcmp(resources[j].md_name, device)) {
                continue;
            }
            OK(uct_md_config_read(components[i], NULL, NULL, &config));
            OK(uct_md_open(components[i], resources[j].md_name, config, &md));
            uct_config_release(config);
            uct_release_component_list(components);
            return md;
        }
    }
    CHECK(!"the transport with the device");
    return NULL;
}

/* Sends bytes and receives as many of the peer's. */
static void swap(int to, const void *own, void *peer, size_t length)
{
    CHECK(send(to, own, length, 0) == (ssize_t)length);
    CHECK(recv(to, peer, length, MSG_WAITALL) == (ssize_t)length);
}

static ucs_status_t send_one(uct_ep_h ep, int mode, char *bytes, uct_mem_h memory,
                             uct_completion_t *completion)
{
    if (mode == SHORT) {
        uint64_t header;

        memcpy(&header, bytes, sizeof(header));
        return uct_ep_am_short(ep, ID, header, bytes + sizeof(header), LENGTH - sizeof(header));
    }
    if (mode == BCOPY) {
        ssize_t packed = uct_ep_am_bcopy(ep, ID, pack, bytes, 0);

        return packed == LENGTH ? UCS_OK : (ucs_status_t)packed;
    }
    uct_iov_t iov = {.buffer = bytes, .length = LENGTH, .memh = memory, .count = 1};

    return uct_ep_am_zcopy(ep, ID, NULL, 0, &iov, 1, 0, completion);
}

int main(int count, char **arguments)
{
    int ends[2], mode;

    CHECK(count == 3);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    int is_sender = child == 0, peer = ends[is_sender];
    close(ends[!is_sender]);
    time_t end = time(NULL) + DEADLINE;

    uct_md_h md = open_md(arguments[1], arguments[2]);
    ucs_async_context_t *async;
    uct_worker_h worker;
    OK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async));
    OK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker));
    uct_iface_config_t *config;
    OK(uct_md_iface_config_read(md, arguments[1], NULL, NULL, &config));
    uct_iface_params_t params = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
        .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode.device = {.tl_name = arguments[1], .dev_name = arguments[2]},
    };
    uct_iface_h iface;
    OK(uct_iface_open(md, worker, &params, config, &iface));
    uct_config_release(config);
    OK(uct_iface_set_am_handler(iface, ID, on_message, &mode, 0));
    uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);

    uct_iface_attr_t attr;
    OK(uct_iface_query(iface, &attr));
    CHECK(attr.cap.flags & UCT_IFACE_FLAG_CONNECT_TO_IFACE);
    char own_device[attr.device_addr_len + 1], own[attr.iface_addr_len + 1];
    char device[attr.device_addr_len + 1], address[attr.iface_addr_len + 1];
    OK(uct_iface_get_device_address(iface, (uct_device_addr_t *)own_device));
    OK(uct_iface_get_address(iface, (uct_iface_addr_t *)own));
    swap(peer, own_device, device, attr.device_addr_len);
    swap(peer, own, address, attr.iface_addr_len);
    CHECK(uct_iface_is_reachable(iface, (uct_device_addr_t *)device, (uct_iface_addr_t *)address));
    uct_ep_params_t ep_params = {
        .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
                      UCT_EP_PARAM_FIELD_IFACE_ADDR,
        .iface = iface,
        .dev_addr = (uct_device_addr_t *)device,
        .iface_addr = (uct_iface_addr_t *)address,
    };
    uct_ep_h ep;
    OK(uct_ep_create(&ep_params, &ep));

    char *bytes = aligned_alloc(4096, 4096), ready = 1;
    uct_mem_h memory = NULL;
    if (attr.cap.flags & UCT_IFACE_FLAG_AM_ZCOPY) {
        OK(uct_md_mem_reg(md, bytes, 4096, UCT_MD_MEM_ACCESS_ALL, &memory));
    }
    for (mode = 0; mode < MODES; ++mode) {
        uct_completion_t completion = {.func = on_completion, .count = 1, .status = UCS_OK};
        ucs_status_t status;

        if (!(attr.cap.flags & flags[mode])) {
            if (!is_sender) {
                printf("%s: not supported\n", names[mode]);
            }
            continue;
        }
        is_received = 0;
        if (is_sender) {
            for (int at = 0; at < LENGTH; ++at) {
                bytes[at] = byte_of(at, mode);
            }
            while ((status = send_one(ep, mode, bytes, memory, &completion)) ==
                   UCS_ERR_NO_RESOURCE) {
                uct_worker_progress(worker);
                CHECK(time(NULL) < end);
            }
            CHECK(status == UCS_OK || status == UCS_INPROGRESS);
            while ((status == UCS_INPROGRESS && completion.count > 0) ||
                   uct_ep_flush(ep, 0, NULL) != UCS_OK) {
                uct_worker_progress(worker);
                CHECK(time(NULL) < end);
            }
        }
        /* Until the receiver has the message, which may need this side's progress. */
        char done = 0;
        while (!done) {
            uct_worker_progress(worker);
            CHECK(time(NULL) < end);
            if (is_sender) {
                if (recv(peer, &done, 1, MSG_DONTWAIT) == 0) {
                    exit(1);
                }
            } else if (is_received) {
                CHECK(send(peer, &ready, 1, 0) == 1);
                printf("%s: received\n", names[mode]);
                done = 1;
            }
        }
    }
    /* The other side may need acknowledgements of this one until both are done. */
    CHECK(send(peer, &ready, 1, 0) == 1);
    while (recv(peer, &ready, 1, MSG_DONTWAIT) != 1) {
        uct_worker_progress(worker);
        CHECK(time(NULL) < end);
    }
    if (memory) {
        OK(uct_md_mem_dereg(md, memory));
    }
    uct_ep_destroy(ep);
    uct_iface_close(iface);
    uct_worker_destroy(worker);
    ucs_async_context_destroy(async);
    uct_md_close(md);
    int status = 0;
    CHECK(is_sender || (waitpid(child, &status, 0) == child && status == 0));
    return 0;
}
