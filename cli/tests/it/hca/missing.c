/* Calls each verb that the software HCA does not have, and prints the name of each that fails. */
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

/* On standard error, as the lines of --explain are, which come before. */
#define TRY(name, failed)                                              \
    do {                                                               \
        errno = 0;                                                     \
        if (failed)                                                    \
            fprintf(stderr, "%s failed: %s\n", name, strerror(errno)); \
        else                                                           \
            fprintf(stderr, "%s works\n", name);                       \
    } while (0)

int main(void)
{
    static char bytes[4096];
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct mlx5dv_context_attr devx = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
    struct ibv_context *context = devices == NULL ? NULL : mlx5dv_open_device(devices[0], &devx);
    struct ibv_pd *pd = context == NULL ? NULL : ibv_alloc_pd(context);
    struct ibv_cq *cq = pd == NULL ? NULL : ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}
    };
    struct ibv_qp *qp = cq == NULL ? NULL : ibv_create_qp(pd, &init);
    struct ibv_alloc_dm_attr dm_attr = {.length = 4096};
    struct ibv_dm *dm = qp == NULL ? NULL : ibv_alloc_dm(context, &dm_attr);
    struct ibv_flow_attr flow = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .port = 1};
    struct ibv_wq_init_attr wq = {
        .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = cq
    };
    struct ibv_flow_action_esp_attr esp;
    struct ibv_counters_init_attr counters = {0};
    struct ibv_qp_attr attributes;
    struct ibv_sge range = {.addr = (uintptr_t)bytes, .length = 4096, .lkey = 0xffffff};
    struct {
        size_t size;
        uint32_t words[64];
    } match = {.size = 64};
    struct mlx5dv_flow_matcher_attr matcher = {
        .type = IBV_FLOW_ATTR_NORMAL, .match_mask = (struct mlx5dv_flow_match_parameters *)&match
    };
    uint32_t rate[12] = {0};

    if (dm == NULL) {
        perror("the objects");
        return 1;
    }
    TRY("ibv_reg_dmabuf_mr", ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE) == NULL);
    TRY("ibv_create_flow", ibv_create_flow(qp, &flow) == NULL);
    TRY("ibv_create_wq", ibv_create_wq(context, &wq) == NULL);
    memset(&esp, 0, sizeof(esp));
    TRY("ibv_create_flow_action_esp", ibv_create_flow_action_esp(context, &esp) == NULL);
    TRY("ibv_create_counters", ibv_create_counters(context, &counters) == NULL);
    memset(&attributes, 0, sizeof(attributes));
    attributes.qp_state = IBV_QPS_SQD;
    TRY("ibv_modify_qp", (errno = ibv_modify_qp(qp, &attributes, IBV_QP_STATE)) != 0);
    attributes.port_num = 9;
    TRY("ibv_query_port", (errno = ibv_query_port(context, 9, &(struct ibv_port_attr){0})) != 0);
    TRY("ibv_advise_mr", (errno = ibv_advise_mr(pd, 77, 0, &range, 1)) != 0);
    TRY("ibv_import_pd", ibv_import_pd(context, 12345) == NULL);
    TRY("ibv_import_mr", ibv_import_mr(pd, 12345) == NULL);
    TRY("ibv_import_dm", ibv_import_dm(context, 12345) == NULL);
    TRY("mlx5dv_dm_map_op_addr", mlx5dv_dm_map_op_addr(dm, 0) == NULL);
    TRY("mlx5dv_create_flow_matcher", mlx5dv_create_flow_matcher(context, &matcher) == NULL);
    TRY("mlx5dv_alloc_var", mlx5dv_alloc_var(context, 0) == NULL);
    TRY("mlx5dv_pp_alloc", mlx5dv_pp_alloc(context, sizeof(rate), rate, 0) == NULL);
    TRY("mlx5dv_devx_create_cmd_comp", mlx5dv_devx_create_cmd_comp(context) == NULL);
    TRY("mlx5dv_devx_umem_reg", mlx5dv_devx_umem_reg(context, (void *)8192, 4096, 7) == NULL);
    TRY("mlx5dv_devx_obj_create",
        mlx5dv_devx_obj_create(context, rate, sizeof(rate), rate, sizeof(rate)) == NULL);
    init.qp_type = IBV_QPT_RAW_PACKET;
    TRY("ibv_create_qp", ibv_create_qp(pd, &init) == NULL);
    return 0;
}
