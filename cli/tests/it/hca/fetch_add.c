/* A fetch-add of 4 and of 8 bytes by UCP, from this process to itself. Fails if a result or the
 * memory is wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

#define CHECK(what)                                                                     \
    do {                                                                                \
        ucs_status_t status_ = (what);                                                  \
        if (status_ != UCS_OK) {                                                        \
            fprintf(stderr, "%s: %s\n", #what, ucs_status_string(status_));             \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static ucp_worker_h worker;

static void finish(ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) {
        ucs_status_t status;
        while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
            ucp_worker_progress(worker);
        ucp_request_free(request);
        CHECK(status);
    } else {
        CHECK(UCS_PTR_STATUS(request));
    }
}

int main(void)
{
    ucp_context_h context;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 | UCP_FEATURE_RMA,
    };
    CHECK(ucp_init(&params, NULL, &context));
    ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    CHECK(ucp_worker_create(context, &worker_params, &worker));
    ucp_address_t *address;
    size_t length;
    CHECK(ucp_worker_get_address(worker, &address, &length));
    ucp_ep_params_t ep_params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = address,
    };
    ucp_ep_h ep;
    CHECK(ucp_ep_create(worker, &ep_params, &ep));

    static uint64_t words[512] __attribute__((aligned(4096)));
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = words,
        .length = sizeof words,
    };
    ucp_mem_h memory;
    CHECK(ucp_mem_map(context, &map, &memory));
    void *packed;
    size_t packed_length;
    ucp_rkey_h key;
    CHECK(ucp_rkey_pack(context, memory, &packed, &packed_length));
    CHECK(ucp_ep_rkey_unpack(ep, packed, &key));

    int wrong = 0;
    for (int size = 4; size <= 8; size += 4) {
        /* No byte order but the host's reads the same. */
        uint64_t before = size == 4 ? 0x01020304u : 0x0102030405060708u, add = 0x11, result = 0;
        words[0] = before;
        ucp_request_param_t options = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
            .datatype = ucp_dt_make_contig(size),
            .reply_buffer = &result,
        };
        finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &add, 1, (uintptr_t)words, key, &options));
        finish(ucp_ep_flush_nbx(ep, &(ucp_request_param_t){0}));
        printf("%d bytes: result %#llx, memory %#llx\n", size, (unsigned long long)result,
               (unsigned long long)words[0]);
        wrong |= result != before || words[0] != before + add;
    }
    ucp_rkey_destroy(key);
    ucp_rkey_buffer_release(packed);
    ucp_mem_unmap(context, memory);
    finish(ucp_ep_close_nbx(ep, &(ucp_request_param_t){0}));
    ucp_worker_release_address(worker, address);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return wrong;
}
