/* A child, forked after its parent has opened a device, opens its own; both end by exit(3). */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void open_device(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);

    if (devices == NULL || ibv_open_device(devices[0]) == NULL) {
        perror("the device");
        exit(1);
    }
}

int main(void)
{
    int child, status;

    open_device();
    child = fork();
    if (child == 0) {
        open_device();
        exit(0);
    }
    return waitpid(child, &status, 0) == child ? status : 1;
}
