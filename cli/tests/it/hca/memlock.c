/* Registers memory up to RLIMIT_MEMLOCK, which is 64 KiB. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define LIMIT 65536

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices == NULL ? NULL : ibv_open_device(devices[0]);
    struct ibv_pd *pd = context == NULL ? NULL : ibv_alloc_pd(context);
    char *bytes = aligned_alloc(LIMIT, 2 * LIMIT);
    struct ibv_mr *half, *whole;

    if (pd == NULL || bytes == NULL) {
        perror("the domain");
        return 1;
    }
    half = ibv_reg_mr(pd, bytes, LIMIT / 2, IBV_ACCESS_LOCAL_WRITE);
    whole = ibv_reg_mr(pd, bytes + LIMIT, LIMIT, IBV_ACCESS_LOCAL_WRITE);
    printf("half: %s\n", half == NULL ? "refused" : "registered");
    printf("more: %s\n", whole != NULL ? "registered" : errno == ENOMEM ? "ENOMEM" : "refused");
    if (whole == NULL && half != NULL && ibv_dereg_mr(half) == 0) {
        whole = ibv_reg_mr(pd, bytes + LIMIT, LIMIT, IBV_ACCESS_LOCAL_WRITE);
        printf("after it: %s\n", whole == NULL ? "refused" : "registered");
    }
    if (whole != NULL) {
        /* The same pages count once, and others beside the first. */
        int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        int changed = ibv_rereg_mr(whole, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access);
        int moved = ibv_rereg_mr(whole, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes, LIMIT, 0);

        printf("rights: %s\n", changed == 0 ? "changed" : "refused");
        printf("place: %s\n", moved == 0 ? "changed" : errno == ENOMEM ? "ENOMEM" : "refused");
    }
    return 0;
}
