/* Writes from one device to the other and frees everything, so that sanitizers and valgrind have
 * nothing to report. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 8192
#define WRITES 20

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *bytes;
    union ibv_gid gid;
};

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void open_end(struct end *end, struct ibv_device *device)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {WRITES, 1, 1, 1, 0}};

    end->bytes = calloc(1, BYTES);
    check((end->context = ibv_open_device(device)) != NULL, "ibv_open_device");
    check((end->pd = ibv_alloc_pd(end->context)) != NULL, "ibv_alloc_pd");
    check((end->cq = ibv_create_cq(end->context, WRITES, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    init.send_cq = init.recv_cq = end->cq;
    check((end->qp = ibv_create_qp(end->pd, &init)) != NULL, "ibv_create_qp");
    end->mr = ibv_reg_mr(end->pd, end->bytes, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    check(end->mr != NULL, "ibv_reg_mr");
    check(ibv_query_gid(end->context, 1, 0, &end->gid) == 0, "ibv_query_gid");
}

static void connect_end(struct end *end, const struct end *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .dgid = peer->gid}},
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

    check(ibv_modify_qp(end->qp, &attr, mask) == 0, "INIT");
    attr.qp_state = IBV_QPS_RTR;
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_modify_qp(end->qp, &attr, mask) == 0, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
    check(ibv_modify_qp(end->qp, &attr, mask) == 0, "RTS");
}

static void close_end(struct end *end)
{
    check(ibv_dereg_mr(end->mr) == 0 && ibv_destroy_qp(end->qp) == 0, "the queue pair");
    check(ibv_destroy_cq(end->cq) == 0 && ibv_dealloc_pd(end->pd) == 0, "the domain");
    check(ibv_close_device(end->context) == 0, "ibv_close_device");
    free(end->bytes);
}

static struct end ends[2];

static void *write_all(void *unused)
{
    struct ibv_sge sge = {(uintptr_t)ends[0].bytes, BYTES, ends[0].mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)ends[1].bytes, ends[1].mr->rkey},
    };
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int done;

    memset(ends[0].bytes, 'x', BYTES);
    for (done = 0; done < WRITES; done++)
        check(ibv_post_send(ends[0].qp, &wr, &bad) == 0, "ibv_post_send");
    for (done = 0; done < WRITES;) {
        int count = ibv_poll_cq(ends[0].cq, 1, &wc);
        check(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS), "a completion");
        done += count;
    }
    return unused;
}

/* Returns a counter of a port. */
static unsigned long long counter(struct ibv_device *device, const char *name)
{
    unsigned long long value = 0;
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/%s", ibv_get_device_name(device), name);
    file = fopen(path, "r");
    check(file != NULL && fscanf(file, "%llu", &value) == 1, path);
    fclose(file);
    return value;
}

int main(int count, char **arguments)
{
    struct ibv_device **devices = ibv_get_device_list(&count);
    pthread_t thread;

    check(devices != NULL && count > 0, "ibv_get_device_list");
    open_end(&ends[0], devices[0]);
    open_end(&ends[1], devices[count - 1]);
    connect_end(&ends[0], &ends[1]);
    connect_end(&ends[1], &ends[0]);
    check(pthread_create(&thread, NULL, write_all, NULL) == 0, "pthread_create");
    pthread_join(thread, NULL);
    check(ends[1].bytes[BYTES - 1] == 'x', "the bytes");
    check(counter(devices[0], "counters/port_xmit_packets") >= WRITES, "the packets sent");
    check(counter(devices[count - 1], "counters/port_rcv_packets") >= WRITES, "the packets received");
    printf("%llu duplicates\n", counter(devices[count - 1], "hw_counters/duplicate_request"));
    close_end(&ends[1]);
    close_end(&ends[0]);
    ibv_free_device_list(devices);
    printf("%s: written\n", arguments[0]);
    return 0;
}
