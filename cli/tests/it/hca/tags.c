/* Tagged messages between two workers of UCP in one process: expected and unexpected, of many
 * sizes, with exact tags and wildcards; every byte is compared.
 *
 * usage: tags ROUNDS
 *
 * Prints "messages are right" at the end. With UCX_RC_MLX5_TM_ENABLE=y the device matches those
 * that are longer than UCX_TM_THRESH. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "tags: %s failed (line %d)\n", #what, __LINE__); exit(1); } } while (0)
#define OK(call) CHECK((call) == UCS_OK)

enum { BATCH = 8, LONGEST = 300000 };

static ucp_context_h context;
static ucp_worker_h sender, receiver;
static unsigned long seed = 4711;

static size_t below(size_t limit)
{
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (seed >> 33) % limit;
}

static void fill(uint8_t *bytes, size_t length, unsigned salt)
{
    for (size_t at = 0; at < length; ++at) {
        bytes[at] = (uint8_t)(at * 31 + at / 251 + salt * 17);
    }
}

static ucp_worker_h worker(void)
{
    ucp_worker_params_t parameters = {.field_mask = 0};
    ucp_worker_h made;
    OK(ucp_worker_create(context, &parameters, &made));
    return made;
}

static void finish(ucs_status_ptr_t request)
{
    CHECK(!UCS_PTR_IS_ERR(request));
    if (request == NULL) {
        return;
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(sender);
        ucp_worker_progress(receiver);
    }
    OK(ucp_request_check_status(request));
    ucp_request_free(request);
}

static ucs_status_ptr_t post(uint8_t *buffer, size_t length, uint64_t tag, uint64_t mask)
{
    ucp_request_param_t parameters = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    return ucp_tag_recv_nbx(receiver, buffer, length, tag, mask, &parameters);
}

static ucs_status_ptr_t start(ucp_ep_h endpoint, const uint8_t *buffer, size_t length, uint64_t tag)
{
    ucp_request_param_t parameters = {.op_attr_mask = 0};
    return ucp_tag_send_nbx(endpoint, buffer, length, tag, &parameters);
}

/* One batch: `late` messages are sent before their receives are posted. */
static void batch(ucp_ep_h endpoint, unsigned round)
{
    static uint8_t sent[BATCH][LONGEST], got[BATCH][LONGEST], wanted[LONGEST];
    static const size_t longest[] = {200, 3000, 20000, LONGEST};
    ucs_status_ptr_t sends[BATCH], receives[BATCH];
    size_t lengths[BATCH];
    unsigned late = (unsigned)below(BATCH / 2);

    for (unsigned at = 0; at < BATCH; ++at) {
        lengths[at] = below(longest[below(4)] + 1);
        fill(sent[at], lengths[at], round * BATCH + at);
        memset(got[at], 0xee, LONGEST);
    }
    /* The low byte of a tag is its number; the rest is the round, which one of three ignores. */
    for (unsigned at = late; at < BATCH; ++at) {
        uint64_t tag = (uint64_t)round << 8 | at;
        receives[at] = post(got[at], LONGEST, at % 3 ? tag : at, at % 3 ? UINT64_MAX : 0xff);
    }
    for (unsigned at = 0; at < BATCH; ++at) {
        sends[at] = start(endpoint, sent[at], lengths[at], (uint64_t)round << 8 | at);
        ucp_worker_progress(receiver);
    }
    for (unsigned turn = 0; turn < 200; ++turn) {
        ucp_worker_progress(sender);
        ucp_worker_progress(receiver);
    }
    for (unsigned at = 0; at < late; ++at) {
        receives[at] = post(got[at], LONGEST, (uint64_t)round << 8 | at, UINT64_MAX);
    }
    for (unsigned at = 0; at < BATCH; ++at) {
        finish(receives[at]);
        finish(sends[at]);
        fill(wanted, lengths[at], round * BATCH + at);
        CHECK(memcmp(got[at], wanted, lengths[at]) == 0);
        CHECK(lengths[at] == LONGEST || got[at][lengths[at]] == 0xee);
    }
}

int main(int count, char **words)
{
    ucp_params_t parameters = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_request_param_t none = {.op_attr_mask = 0};
    ucp_address_t *address;
    ucp_config_t *config;
    ucp_ep_h endpoint;
    size_t length;

    CHECK(count == 2);
    OK(ucp_config_read(NULL, NULL, &config));
    OK(ucp_init(&parameters, config, &context));
    ucp_config_release(config);
    sender = worker(), receiver = worker();
    OK(ucp_worker_get_address(receiver, &address, &length));
    to.address = address;
    OK(ucp_ep_create(sender, &to, &endpoint));
    for (int round = 0; round < atoi(words[1]); ++round) {
        batch(endpoint, (unsigned)round);
    }
    finish(ucp_ep_close_nbx(endpoint, &none));
    ucp_worker_release_address(receiver, address);
    ucp_worker_destroy(sender);
    ucp_worker_destroy(receiver);
    ucp_cleanup(context);
    puts("messages are right");
    return 0;
}
