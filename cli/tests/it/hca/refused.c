/* Makes calls that are refused, each for another reason. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static int failed;

static void expect_refused(const char *what, int refused)
{
    if (!refused) {
        printf("%s was not refused\n", what);
        failed = 1;
    }
}

int main(void)
{
    static char bytes[4096];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices == NULL ? NULL : ibv_open_device(devices[0]);
    struct ibv_pd *pd = context == NULL ? NULL : ibv_alloc_pd(context);
    struct ibv_cq *cq = pd == NULL ? NULL : ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}
    };
    struct ibv_qp *qp = cq == NULL ? NULL : ibv_create_qp(pd, &init);
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh = {.dgid.raw = {0xfe, 0x80}}};
    struct ibv_flow_attr flow = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .port = 1};
    struct ibv_qp_attr attributes;

    if (qp == NULL) {
        perror("the objects");
        return 1;
    }
    expect_refused("reg_mr", ibv_reg_mr(pd, (void *)8192, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL);
    expect_refused("access", ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_REMOTE_WRITE) == NULL);
    memset(&attributes, 0, sizeof(attributes));
    attributes.qp_state = IBV_QPS_INIT;
    expect_refused("modify_qp",
                   ibv_modify_qp(qp, &attributes,
                                 IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
    attributes.qp_state = IBV_QPS_RTS;
    expect_refused("the transition", ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
    init.qp_type = IBV_QPT_RAW_PACKET;
    expect_refused("create_qp", ibv_create_qp(pd, &init) == NULL);
    expect_refused("create_ah", ibv_create_ah(pd, &path) == NULL);
    expect_refused("create_flow", ibv_create_flow(qp, &flow) == NULL);
    expect_refused("destroy_cq", ibv_destroy_cq(cq) == EBUSY);
    expect_refused("dealloc_pd", ibv_dealloc_pd(pd) == EBUSY);
    puts(failed ? "failed" : "all were refused");
    return failed;
}
