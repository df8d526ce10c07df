/* The files of sysfs have the values that the device of this process returns. */
#include <endian.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed;

static void compare(const char *file, const char *expected)
{
    char path[256], text[256] = "", again[256] = "";
    FILE *stream;
    int descriptor;

    snprintf(path, sizeof(path), "/sys/class/infiniband/mlx5_0/%s", file);
    descriptor = open(path, O_RDONLY);
    if (descriptor < 0 || read(descriptor, text, sizeof(text) - 1) < 0) {
        perror(path);
        failed = 1;
    }
    close(descriptor);
    stream = fopen(path, "r");
    if (stream == NULL || fgets(again, sizeof(again), stream) == NULL) {
        perror(path);
        failed = 1;
    }
    if (stream != NULL) {
        fclose(stream);
    }
    if (strcmp(text, expected) != 0 || strcmp(again, expected) != 0) {
        printf("%s: %s instead of %s", file, text, expected);
        failed = 1;
    }
}

static void guid(const char *file, __be64 value)
{
    uint64_t number = be64toh(value);
    char text[64];

    snprintf(text, sizeof(text), "%04x:%04x:%04x:%04x\n", (unsigned)(number >> 48),
             (unsigned)(number >> 32 & 0xffff), (unsigned)(number >> 16 & 0xffff),
             (unsigned)(number & 0xffff));
    compare(file, text);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices == NULL ? NULL : ibv_open_device(devices[0]);
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    union ibv_gid gid;
    char text[64] = "";

    if (context == NULL || ibv_query_device(context, &device) != 0 ||
        ibv_query_port(context, 1, &port) != 0 || ibv_query_gid(context, 1, 0, &gid) != 0) {
        perror("the device");
        return 1;
    }
    guid("node_guid", device.node_guid);
    guid("sys_image_guid", device.sys_image_guid);
    if (ibv_get_device_guid(devices[0]) != device.node_guid) {
        puts("ibv_get_device_guid differs");
        failed = 1;
    }
    for (int i = 0; i < 16; i += 2) {
        sprintf(text + strlen(text), "%s%02x%02x", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
    }
    strcat(text, "\n");
    compare("ports/1/gids/0", text);
    snprintf(text, sizeof(text), "%#x\n", port.lid);
    compare("ports/1/lid", port.lid == 0 ? "0x0\n" : text);
    compare("ports/1/state", port.state == IBV_PORT_ACTIVE ? "4: ACTIVE\n" : "1: DOWN\n");
    compare("ports/1/phys_state", port.phys_state == 5 ? "5: LinkUp\n" : "3: Disabled\n");
    snprintf(text, sizeof(text), "%#x\n", port.sm_lid);
    compare("ports/1/sm_lid", port.sm_lid == 0 ? "0x0\n" : text);
    snprintf(text, sizeof(text), "0x%08x\n", port.port_cap_flags);
    compare("ports/1/cap_mask", text);
    compare("ports/1/counters/port_rcv_errors", "0\n");
    if (open("/sys/class/infiniband/mlx5_0/ports/9/counters/port_rcv_errors", O_RDONLY) >= 0) {
        puts("a port that does not exist has counters");
        failed = 1;
    }
    puts(failed ? "failed" : "the values are those of the device");
    return failed;
}
