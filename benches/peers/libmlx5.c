/* What libmlx5 needs for an operation: N calls of one function, which callgrind counts (`cargo xtask bench`) or which are
 * timed in batches of 16 (`cargo xtask compare driver`).
 *
 * usage: libmlx5 DEVICE OPERATION N
 */
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stopwatch.h"

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "libmlx5: %s failed\n", #what); exit(1); } } while (0)
#define DEADLINE 60
#define BATCH 16

struct bench {
    struct ibv_qp *qp;
    struct ibv_qp_ex *qpx;
    struct ibv_cq *cq;
    struct ibv_mr *local, *remote;
    unsigned flags;
    /* The destination of requests that carry one: a route, and a queue pair, a target or a shared receive queue. */
    struct ibv_ah *ah;
    struct mlx5dv_qp_ex *dv;
    uint32_t number;
};

#define KEY 0x11

#define MEASURED __attribute__((noinline)) int

static int post(struct bench *b, enum ibv_wr_opcode opcode, unsigned length, unsigned flags)
{
    struct ibv_sge sge = { .addr = (uintptr_t)b->local->addr, .length = length, .lkey = b->local->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = b->flags | flags };
    wr.wr.rdma.remote_addr = (uintptr_t)b->remote->addr;
    wr.wr.rdma.rkey = b->remote->rkey;
    return ibv_post_send(b->qp, &wr, &bad);
}

MEASURED measured_post_write_8(struct bench *b) { return post(b, IBV_WR_RDMA_WRITE, 8, IBV_SEND_INLINE); }
MEASURED measured_post_write_64(struct bench *b) { return post(b, IBV_WR_RDMA_WRITE, 64, IBV_SEND_INLINE); }
MEASURED measured_post_write_sge(struct bench *b) { return post(b, IBV_WR_RDMA_WRITE, 4096, 0); }
MEASURED measured_post_send_16(struct bench *b) { return post(b, IBV_WR_SEND, 16, IBV_SEND_INLINE); }

static inline __attribute__((always_inline)) int wr_write_inline(struct bench *b, size_t length)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags | IBV_SEND_INLINE;
    ibv_wr_rdma_write(b->qpx, b->remote->rkey, (uintptr_t)b->remote->addr);
    ibv_wr_set_inline_data(b->qpx, b->local->addr, length);
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_wr_write_8(struct bench *b) { return wr_write_inline(b, 8); }
MEASURED measured_wr_write_64(struct bench *b) { return wr_write_inline(b, 64); }

MEASURED measured_wr_write_sge(struct bench *b)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags;
    ibv_wr_rdma_write(b->qpx, b->remote->rkey, (uintptr_t)b->remote->addr);
    ibv_wr_set_sge(b->qpx, b->local->lkey, (uintptr_t)b->local->addr, 4096);
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_wr_send_16(struct bench *b)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags | IBV_SEND_INLINE;
    ibv_wr_send(b->qpx);
    ibv_wr_set_inline_data(b->qpx, b->local->addr, 16);
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_post_ud_send_8(struct bench *b)
{
    struct ibv_sge sge = { .addr = (uintptr_t)b->local->addr, .length = 8, .lkey = b->local->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .send_flags = b->flags | IBV_SEND_INLINE };
    wr.wr.ud.ah = b->ah;
    wr.wr.ud.remote_qpn = b->number;
    wr.wr.ud.remote_qkey = KEY;
    return ibv_post_send(b->qp, &wr, &bad);
}

MEASURED measured_wr_ud_send_8(struct bench *b)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags | IBV_SEND_INLINE;
    ibv_wr_send(b->qpx);
    ibv_wr_set_ud_addr(b->qpx, b->ah, b->number, KEY);
    ibv_wr_set_inline_data(b->qpx, b->local->addr, 8);
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_wr_dc_write_8(struct bench *b)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags | IBV_SEND_INLINE;
    ibv_wr_rdma_write(b->qpx, b->remote->rkey, (uintptr_t)b->remote->addr);
    mlx5dv_wr_set_dc_addr(b->dv, b->ah, b->number, KEY);
    ibv_wr_set_inline_data(b->qpx, b->local->addr, 8);
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_wr_xrc_write_8(struct bench *b)
{
    ibv_wr_start(b->qpx);
    b->qpx->wr_flags = b->flags | IBV_SEND_INLINE;
    ibv_wr_rdma_write(b->qpx, b->remote->rkey, (uintptr_t)b->remote->addr);
    ibv_wr_set_xrc_srqn(b->qpx, b->number);
    ibv_wr_set_inline_data(b->qpx, b->local->addr, 8);
    return ibv_wr_complete(b->qpx);
}

/* 16 writes by one doorbell. */
MEASURED measured_wr_batch(struct bench *b)
{
    ibv_wr_start(b->qpx);
    for (int i = 0; i < BATCH; i++) {
        b->qpx->wr_flags = (i == BATCH - 1 ? IBV_SEND_SIGNALED : 0) | IBV_SEND_INLINE;
        ibv_wr_rdma_write(b->qpx, b->remote->rkey, (uintptr_t)b->remote->addr);
        ibv_wr_set_inline_data(b->qpx, b->local->addr, 8);
    }
    return ibv_wr_complete(b->qpx);
}

MEASURED measured_poll(struct bench *b)
{
    struct ibv_wc wc;
    return ibv_poll_cq(b->cq, 1, &wc);
}

/* A poll that returns a completion. */
MEASURED measured_reap(struct bench *b)
{
    struct ibv_wc wc;
    return ibv_poll_cq(b->cq, 1, &wc) != 1 || wc.status != IBV_WC_SUCCESS;
}

static const struct { const char *name; int (*run)(struct bench *); } operations[] = {
    { "post_write_8", measured_post_write_8 }, { "post_write_64", measured_post_write_64 },
    { "post_write_sge", measured_post_write_sge }, { "post_send_16", measured_post_send_16 },
    { "wr_write_8", measured_wr_write_8 }, { "wr_write_64", measured_wr_write_64 },
    { "wr_write_sge", measured_wr_write_sge }, { "wr_send_16", measured_wr_send_16 },
    { "wr_batch", measured_wr_batch }, { "poll", measured_poll }, { "reap", measured_reap },
    { "post_ud_send_8", measured_post_ud_send_8 }, { "wr_ud_send_8", measured_wr_ud_send_8 },
    { "wr_dc_write_8", measured_wr_dc_write_8 }, { "wr_xrc_write_8", measured_wr_xrc_write_8 },
};

static struct ibv_context *open_device(const char *name)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            return ibv_open_device(list[i]);
    return NULL;
}

static struct ibv_qp_init_attr_ex settings(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, uint64_t operations)
{
    return (struct ibv_qp_init_attr_ex) {
        .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
        .cap = { .max_send_wr = 128, .max_send_sge = 1, .max_inline_data = 64 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = operations,
    };
}

static struct ibv_qp *create(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr_ex init = settings(pd, cq, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND);
    init.cap.max_recv_wr = 128;
    init.cap.max_recv_sge = 1;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    return qp;
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer, int gid_index, union ibv_gid gid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } } };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr ready = { .qp_state = IBV_QPS_RTS, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(qp, &ready, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_ah_attr route(union ibv_gid gid)
{
    return (struct ibv_ah_attr) { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
}

/* A queue pair for datagrams. Those that find no receive request are dropped. */
static struct ibv_qp *create_ud(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr_ex init = settings(pd, cq, IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    return qp;
}

static void open_ud(struct bench *b, struct ibv_context *context, struct ibv_pd *pd, union ibv_gid gid)
{
    struct ibv_ah_attr attr = route(gid);
    b->ah = ibv_create_ah(pd, &attr);
    CHECK(b->ah);
    b->qp = create_ud(context, pd, b->cq);
    b->qpx = ibv_qp_to_qp_ex(b->qp);
    b->number = create_ud(context, pd, b->cq)->qp_num;
}

/* An initiator, and a target of the same process. */
static void open_dc(struct bench *b, struct ibv_context *context, struct ibv_pd *pd, union ibv_gid gid)
{
    struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_qp_init_attr_ex init = { .send_cq = b->cq, .recv_cq = b->cq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
        .srq = ibv_create_srq(pd, &srq), .comp_mask = IBV_QP_INIT_ATTR_PD };
    CHECK(init.srq);
    struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
        .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY } };
    struct ibv_qp *target = mlx5dv_create_qp(context, &init, &dv);
    CHECK(target);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .path_mtu = IBV_MTU_4096, .min_rnr_timer = 12, .timeout = 16, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
        .ah_attr = route(gid) };
    CHECK(!ibv_modify_qp(target, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(target, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV));
    b->number = target->qp_num;
    init = settings(pd, b->cq, IBV_QPT_DRIVER, IBV_QP_EX_WITH_RDMA_WRITE);
    dv.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
    b->qp = mlx5dv_create_qp(context, &init, &dv);
    CHECK(b->qp);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(!ibv_modify_qp(b->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(b->qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(b->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
    b->qpx = ibv_qp_to_qp_ex(b->qp);
    b->dv = mlx5dv_qp_ex_from_ibv_qp_ex(b->qpx);
    b->ah = ibv_create_ah(pd, &attr.ah_attr);
    CHECK(b->ah);
}

/* An initiator and a target of XRC, connected, and a shared receive queue. */
static void open_xrc(struct bench *b, struct ibv_context *context, struct ibv_pd *pd, union ibv_gid gid)
{
    struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
        .oflags = O_CREAT };
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
    CHECK(xrcd);
    struct ibv_srq_init_attr_ex srq = { .attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
        .xrcd = xrcd, .cq = b->cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD };
    struct ibv_srq *shared = ibv_create_srq_ex(context, &srq);
    CHECK(shared && !ibv_get_srq_num(shared, &b->number));
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
    struct ibv_qp *target = ibv_create_qp_ex(context, &init);
    init = settings(pd, b->cq, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_RDMA_WRITE);
    b->qp = ibv_create_qp_ex(context, &init);
    CHECK(target && b->qp);
    struct ibv_qp *both[] = { b->qp, target };
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
        CHECK(!ibv_modify_qp(both[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    }
    join(b->qp, target, 0, gid);
    join(target, b->qp, 0, gid);
    b->qpx = ibv_qp_to_qp_ex(b->qp);
}

static void receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
    struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey };
    struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
    CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Takes completions until `wanted` sends are done. */
static void drain(struct ibv_cq *cq, struct ibv_qp *peer, struct ibv_mr *mr, int wanted)
{
    time_t end = time(NULL) + DEADLINE;
    while (wanted > 0) {
        struct ibv_wc wc;
        int got = ibv_poll_cq(cq, 1, &wc);
        CHECK(got >= 0 && time(NULL) < end);
        if (!got) {
            /* The device wants the core, too. */
            sched_yield();
            continue;
        }
        CHECK(wc.status == IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_RECV)
            receive(peer, mr);
        else
            wanted--;
    }
}

/* Lets the device carry out what was posted, without polling. On a CPU of its own, it needs a few turns. */
static void settle(void)
{
    for (int i = 0; i < 300; i++)
        sched_yield();
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    int (*run)(struct bench *) = NULL;
    for (unsigned i = 0; i < sizeof operations / sizeof *operations; i++)
        if (!strcmp(operations[i].name, argv[2]))
            run = operations[i].run;
    CHECK(run);
    struct ibv_context *context = open_device(argv[1]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 512, NULL, NULL, 0);
    CHECK(pd && cq);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct bench b = { .cq = cq };
    b.local = ibv_reg_mr(pd, aligned_alloc(4096, 4096), 4096, access);
    b.remote = ibv_reg_mr(pd, aligned_alloc(4096, 4096), 4096, access);
    CHECK(b.local && b.remote);
    b.qp = create(context, pd, cq);
    b.qpx = ibv_qp_to_qp_ex(b.qp);
    struct ibv_qp *peer = create(context, pd, cq);
    for (int i = 0; i < 64; i++)
        receive(peer, b.remote);
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 0, &gid));
    join(b.qp, peer, 0, gid);
    join(peer, b.qp, 0, gid);
    if (run == measured_post_ud_send_8 || run == measured_wr_ud_send_8)
        open_ud(&b, context, pd, gid);
    else if (run == measured_wr_dc_write_8)
        open_dc(&b, context, pd, gid);
    else if (run == measured_wr_xrc_write_8)
        open_xrc(&b, context, pd, gid);
    int count = atoi(argv[3]);
    struct stopwatch watch;
    stopwatch_open(&watch, run == measured_wr_batch ? count * BATCH : count, BATCH);
    if (run == measured_wr_batch) {
        for (int i = 0; i < count; i++) {
            stopwatch_start(&watch);
            CHECK(!run(&b));
            stopwatch_stop(&watch);
            drain(cq, peer, b.remote, 1);
        }
    } else {
        int posts = run != measured_poll && run != measured_reap;
        for (int i = 0; i < count; i += BATCH) {
            if (run == measured_reap) {
                b.flags = IBV_SEND_SIGNALED;
                for (int j = 0; j < BATCH; j++)
                    CHECK(!measured_wr_write_8(&b));
                settle();
            }
            int good = 0;
            stopwatch_start(&watch);
            for (int j = 1; j <= BATCH; j++) {
                /* One completion in 16. */
                b.flags = j % BATCH ? 0 : IBV_SEND_SIGNALED;
                good += !run(&b);
            }
            stopwatch_stop(&watch);
            if (run == measured_reap && good < BATCH) {
                /* The device was late. */
                stopwatch_discard(&watch);
                drain(cq, peer, b.remote, BATCH - good);
            }
            CHECK(good == BATCH || run == measured_reap);
            if (posts)
                drain(cq, peer, b.remote, 1);
        }
    }
    stopwatch_print(&watch);
    return 0;
}
