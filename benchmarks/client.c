/* The load client of the benchmarks. One thread, epoll, HTTP/1.1 keep-alive; prints one JSON object.
 *
 *   client post PORT TARGETS CLIENTS REQUESTS WARMUP LIMIT     each client POSTs one request after another, with its session if it has one
 *   client sse PORT TARGETS READERS COUNT TAG PROMPT IDLE LIMIT   opens READERS streams, POSTs the file PROMPT, counts events
 *   client idle PORT TARGETS STREAMS LIMIT                    opens streams, says READY, holds them until stdin ends
 *
 * TARGETS is a file with one target a line (path, session, then headers, tab-separated); client or reader i uses line i, cyclically.
 * Times are in seconds. Events are recognised by "@TAG:" and ten digits, the sequence number, in their data.
 */
#define _GNU_SOURCE
#include "loop.h"

/* ---- post ---- */

typedef struct {
    Response response;
    const Target *target;
    long id;
    double sent_at;
    long left;
} Caller;

static void call(Caller *c)
{
    char body[256], session[128] = "";
    c->id++;
    if (*c->target->session)
        snprintf(session, sizeof session, "\"sessionId\":\"%s\",", c->target->session);
    snprintf(body, sizeof body, "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"method\":\"x/echo\",\"params\":{%s\"text\":\"hello\"}}", c->id, session);
    expect_response(&c->response);
    c->sent_at = now();
    send_post(c->response.fd, c->target, "", body);
}

static int answered_rightly(Caller *c)
{
    char id[40];
    int len = snprintf(id, sizeof id, "\"id\":%ld", c->id);
    append(&c->response.body, "", 1);
    const char *at = strstr(c->response.body.at, id);
    return c->response.status == 200 && at != NULL && (at[len] == ',' || at[len] == '}') && strstr(c->response.body.at, "\"result\"");
}

/* Lets every caller make `requests` calls; returns how many were answered rightly, their latencies in `latencies`. */
static long round_of_calls(Caller *callers, long clients, long requests, double until, double *latencies, long *wrong)
{
    struct epoll_event events[MAX_EVENTS];
    long answered = 0, busy = clients;
    for (long i = 0; i < clients; i++) {
        callers[i].left = requests;
        call(&callers[i]);
    }
    while (busy > 0 && now() < until) {
        int n = await(events, until);
        for (int k = 0; k < n; k++) {
            Caller *c = &callers[events[k].data.u64];
            if (c->left == 0)
                continue;
            if (!receive(&c->response)) {
                (*wrong)++;
                c->left = 0;
                busy--;
                epoll_ctl(poller, EPOLL_CTL_DEL, c->response.fd, NULL);
            } else if (c->response.phase == COMPLETE) {
                double took = now() - c->sent_at;
                if (answered_rightly(c))
                    latencies[answered++] = took;
                else
                    (*wrong)++;
                if (--c->left > 0)
                    call(c);
                else
                    busy--;
            }
        }
    }
    return answered;
}

static void post(const Target *targets, long target_count, long clients, long requests, long warmup, double limit)
{
    Caller *callers = calloc((size_t)clients, sizeof *callers);
    double *latencies = calloc((size_t)(clients * (requests > warmup ? requests : warmup)) + 1, sizeof *latencies);
    long wrong = 0;
    double until = now() + limit;
    if (callers == NULL || latencies == NULL)
        die("out of memory");
    for (long i = 0; i < clients; i++) {
        callers[i].target = &targets[i % target_count];
        callers[i].id = i * 10000000; /* unique among all clients: a server may share one id space */
        callers[i].response.fd = dial(port);
        watch(callers[i].response.fd, i);
    }
    if (warmup > 0)
        round_of_calls(callers, clients, warmup, until, latencies, &wrong);
    double started = now();
    long answered = wrong ? 0 : round_of_calls(callers, clients, requests, until, latencies, &wrong);
    double seconds = now() - started;
    qsort(latencies, (size_t)answered, sizeof *latencies, by_value);
    printf("{\"answered\":%ld,\"wanted\":%ld,\"wrong\":%ld,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
           answered, clients * requests, wrong, seconds, latencies[answered / 2] * 1e6,
           latencies[answered ? (answered - 1) * 99 / 100 : 0] * 1e6, latencies[answered ? answered - 1 : 0] * 1e6);
}

/* ---- sse and idle ---- */

typedef struct {
    Response response;
    const Target *target;
    char id[24], last_id[24]; /* of the event being read; of the last whole event */
    long sequence;            /* of the event being read, -1 without one */
    unsigned char *seen;
    long distinct, repeated, reordered, others, highest, resumed;
    int gone;
} Reader;

typedef struct {
    long count; /* events expected by each reader */
    char mark[32];
    size_t mark_len;
    double last_event;
} Burst;

static void open_stream(Reader *r, long index)
{
    r->response.fd = dial(port);
    expect_response(&r->response);
    send_get(r->response.fd, r->target, r->last_id);
    watch(r->response.fd, index);
}

static void finish_event(Reader *r, const Burst *b)
{
    memcpy(r->last_id, r->id, sizeof r->last_id);
    long n = r->sequence;
    r->sequence = -1;
    if (n < 0 || n >= b->count) {
        r->others++;
        return;
    }
    unsigned char bit = (unsigned char)(1 << (n & 7));
    if (r->seen[n >> 3] & bit) {
        r->repeated++;
        return;
    }
    r->seen[n >> 3] |= bit;
    r->distinct++;
    if (n < r->highest)
        r->reordered++;
    else
        r->highest = n;
}

/* True after the blank line that ends an event (or a comment). */
static int read_line(Reader *r, const char *line, size_t len, const Burst *b, int *in_event)
{
    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (len == 0) {
        if (*in_event)
            finish_event(r, b);
        *in_event = 0;
        return 1;
    }
    if (len > 3 && memcmp(line, "id:", 3) == 0) {
        size_t from = line[3] == ' ' ? 4 : 3, n = len - from;
        n = n < sizeof r->id - 1 ? n : sizeof r->id - 1;
        memcpy(r->id, line + from, n);
        r->id[n] = '\0';
    } else if (len > 5 && memcmp(line, "data:", 5) == 0) {
        *in_event = 1;
        const char *mark = memmem(line, len, b->mark, b->mark_len);
        if (mark != NULL && mark + b->mark_len + 10 <= line + len) {
            r->sequence = 0;
            for (int i = 0; i < 10; i++)
                r->sequence = r->sequence * 10 + (mark[b->mark_len + (size_t)i] - '0');
        }
    }
    return 0;
}

/* Consumes whole events; what is left of the last, unfinished one stays in the buffer. */
static void read_events(Reader *r, Burst *b)
{
    Buffer *body = &r->response.body;
    char *line = body->at, *end = body->at + body->used, *event = line, *newline;
    long before = r->distinct;
    int in_event = 0;
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        int ended = read_line(r, line, (size_t)(newline - line), b, &in_event);
        line = newline + 1;
        if (ended)
            event = line;
    }
    r->sequence = -1;
    body->used = (size_t)(end - event);
    memmove(body->at, event, body->used);
    if (r->distinct > before)
        b->last_event = now();
}

/* A stream that ended early is resumed by its last event id, as any client would. */
static void resume(Reader *r, long index)
{
    close(r->response.fd);
    if (r->response.status != 200 || ++r->resumed > 1000)
        r->gone = 1;
    else
        open_stream(r, index);
}

static void open_streams(Reader *readers, long count, const Target *targets, long target_count, double until)
{
    struct epoll_event events[MAX_EVENTS];
    for (long i = 0; i < count; i++) {
        readers[i].target = &targets[i % target_count];
        readers[i].sequence = -1;
        open_stream(&readers[i], i);
    }
    for (long open = 0; open < count;) {
        int n = await(events, until);
        if (n == 0)
            die("streams did not open in time");
        for (int k = 0; k < n; k++) {
            Reader *r = &readers[events[k].data.u64];
            int fresh = r->response.status == 0;
            if (!receive(&r->response))
                die("a stream ended while it was opened");
            if (fresh && r->response.status != 0) {
                open++;
                if (r->response.status != 200) {
                    fprintf(stderr, "client: a stream was refused with status %d\n", r->response.status);
                    exit(1);
                }
            }
        }
    }
}

static void report_readers(const Reader *readers, long count, const Burst *b, double sent, double answered, int status, int timed_out)
{
    long distinct = 0, lost = 0, repeated = 0, reordered = 0, others = 0, resumed = 0, gone = 0, fewest = b->count;
    for (long i = 0; i < count; i++) {
        const Reader *r = &readers[i];
        distinct += r->distinct;
        lost += b->count - r->distinct;
        repeated += r->repeated;
        reordered += r->reordered;
        others += r->others;
        resumed += r->resumed;
        gone += r->gone;
        fewest = r->distinct < fewest ? r->distinct : fewest;
    }
    printf("{\"delivered\":%ld,\"lost\":%ld,\"repeated\":%ld,\"reordered\":%ld,\"others\":%ld,\"resumed\":%ld,\"gone\":%ld,"
           "\"fewest\":%ld,\"seconds\":%.6f,\"answered_after\":%.6f,\"status\":%d,\"timed_out\":%s}\n",
           distinct, lost, repeated, reordered, others, resumed, gone, fewest, b->last_event - sent,
           answered > 0 ? answered - sent : 0.0, status, timed_out ? "true" : "false");
}

static void sse(const Target *targets, long target_count, long count, Burst *b, const char *prompt, double idle, double limit)
{
    struct epoll_event events[MAX_EVENTS];
    Reader *readers = calloc((size_t)count, sizeof *readers);
    Response trigger = {0};
    double until = now() + limit, answered = 0;
    if (readers == NULL)
        die("out of memory");
    for (long i = 0; i < count; i++)
        if ((readers[i].seen = calloc((size_t)b->count / 8 + 1, 1)) == NULL)
            die("out of memory");
    open_streams(readers, count, targets, target_count, until);
    trigger.fd = dial(port);
    watch(trigger.fd, count);
    double sent = now(), active = sent;
    b->last_event = sent;
    send_post(trigger.fd, &targets[0], "", prompt);
    long waiting = count;
    while ((waiting > 0 || answered == 0) && now() < until && now() - active < idle) {
        int n = await(events, until < active + idle ? until : active + idle);
        for (int k = 0; k < n; k++) {
            long index = (long)events[k].data.u64;
            if (index == count) {
                if (!receive(&trigger) || trigger.phase == COMPLETE) {
                    answered = active = now();
                    close(trigger.fd);
                }
                continue;
            }
            Reader *r = &readers[index];
            int open = receive(&r->response) && r->response.phase != COMPLETE, was_short = r->distinct < b->count;
            if (r->response.status == 200)
                read_events(r, b);
            if (!open)
                resume(r, index);
            if (was_short && (r->distinct == b->count || r->gone))
                waiting--;
            active = b->last_event > active ? b->last_event : active;
        }
    }
    report_readers(readers, count, b, sent, answered, trigger.status, now() >= until);
}

static void hold_idle(const Target *targets, long target_count, long count, double limit)
{
    struct epoll_event events[MAX_EVENTS];
    Reader *readers = calloc((size_t)count, sizeof *readers);
    double until = now() + limit;
    long closed = 0;
    if (readers == NULL)
        die("out of memory");
    open_streams(readers, count, targets, target_count, until);
    printf("READY\n");
    fflush(stdout);
    watch(STDIN_FILENO, count);
    for (int held = 1; held && now() < until;) {
        int n = await(events, until);
        for (int k = 0; k < n; k++) {
            long index = (long)events[k].data.u64;
            if (index == count) {
                held = 0;
            } else if (!receive(&readers[index].response)) {
                epoll_ctl(poller, EPOLL_CTL_DEL, readers[index].response.fd, NULL);
                closed++;
            } else {
                readers[index].response.body.used = 0;
            }
        }
    }
    printf("{\"streams\":%ld,\"closed\":%ld}\n", count, closed);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        die("usage: client post|sse|idle PORT TARGETS ...");
    long target_count;
    port = (int)number(argv[2]);
    Target *targets = read_targets(argv[3], &target_count);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0)
        die("epoll");
    if (strcmp(argv[1], "post") == 0 && argc == 8) {
        post(targets, target_count, number(argv[4]), number(argv[5]), number(argv[6]), atof(argv[7]));
    } else if (strcmp(argv[1], "sse") == 0 && argc == 10) {
        Burst b = {.count = number(argv[5])};
        b.mark_len = (size_t)snprintf(b.mark, sizeof b.mark, "@%s:", argv[6]);
        if (b.mark_len >= sizeof b.mark)
            die("tag too long");
        sse(targets, target_count, number(argv[4]), &b, read_file(argv[7]), atof(argv[8]), atof(argv[9]));
    } else if (strcmp(argv[1], "idle") == 0 && argc == 6) {
        hold_idle(targets, target_count, number(argv[4]), atof(argv[5]));
    } else {
        die("wrong arguments");
    }
    return 0;
}
