/* The load client for whole turns and for the way of single updates. One thread, epoll, HTTP/1.1 keep-alive; prints one JSON object.
 *
 *   turns turn PORT TARGETS CLIENTS TURNS WARMUP HEADERS LIMIT   each client takes one turn after another in its own session
 *   turns pace PORT TARGETS COUNT RATE LIMIT                     one turn with COUNT updates, RATE a second; how long each takes
 *
 * Every client has a stream of its own, beside the socket of its POSTs. A turn is over when its one update and its response
 * have arrived: the response answers the POST, or comes on the stream after a 202. HEADERS is what clients send with each
 * prompt: `bare` for none, `keyed` for an Idempotency-Key, `async` for that and `Prefer: respond-async`.
 * TARGETS is as for client.c; every target has a session.
 */
#define _GNU_SOURCE
#include "loop.h"

typedef struct {
    Response post, stream;
    const Target *target;
    const char *headers;
    char mark[40], id_mark[40]; /* in the update and in the response of this turn */
    size_t mark_len, id_mark_len;
    long id, left;
    double sent_at;
    int posted, updated, answered; /* of this turn */
    long early, wrong;             /* responses that came on the stream before their update; refusals */
} Client;

static void prompt(Client *c)
{
    char body[512], more[160] = "";
    c->id++;
    c->posted = c->updated = c->answered = 0;
    c->mark_len = (size_t)snprintf(c->mark, sizeof c->mark, "@t%ld:", c->id);
    c->id_mark_len = (size_t)snprintf(c->id_mark, sizeof c->id_mark, "\"id\":%ld,", c->id);
    snprintf(body, sizeof body,
             "{\"jsonrpc\":\"2.0\",\"id\":%ld,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"%s\","
             "\"prompt\":[{\"type\":\"text\",\"text\":\"burst 1 120 t%ld\"}]}}",
             c->id, c->target->session, c->id);
    if (strcmp(c->headers, "bare") != 0)
        snprintf(more, sizeof more, "Idempotency-Key: key-%ld-%ld\r\n%s", (long)getpid(), c->id,
                 strcmp(c->headers, "async") == 0 ? "Prefer: respond-async\r\n" : "");
    expect_response(&c->post);
    c->sent_at = now();
    send_post(c->post.fd, c->target, more, body);
}

static void post_answered(Client *c)
{
    c->posted = 1;
    append(&c->post.body, "", 1);
    if (c->post.status == 200 && strstr(c->post.body.at, c->id_mark) && strstr(c->post.body.at, "\"result\""))
        c->answered = 1;
    else if (c->post.status != 202)
        c->wrong++;
}

/* Consumes whole lines; an unfinished one stays in the buffer. */
static void read_stream(Client *c)
{
    Buffer *body = &c->stream.body;
    char *line = body->at, *end = body->at + body->used, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        size_t len = (size_t)(newline - line);
        if (len > 5 && memcmp(line, "data:", 5) == 0) {
            if (memmem(line, len, c->mark, c->mark_len))
                c->updated = 1;
            else if (memmem(line, len, c->id_mark, c->id_mark_len) && memmem(line, len, "\"result\"", 8)) {
                c->answered = 1;
                c->early += !c->updated;
            }
        }
        line = newline + 1;
    }
    body->used = (size_t)(end - line);
    memmove(body->at, line, body->used);
}

static void open_streams(Client *clients, long count, double until)
{
    struct epoll_event events[MAX_EVENTS];
    for (long i = 0; i < count; i++) {
        clients[i].stream.fd = dial(port);
        expect_response(&clients[i].stream);
        send_get(clients[i].stream.fd, clients[i].target, "");
        watch(clients[i].stream.fd, 2 * i + 1);
    }
    for (long open = 0; open < count;) {
        int n = await(events, until);
        if (n == 0)
            die("streams did not open in time");
        for (int k = 0; k < n; k++) {
            Response *stream = &clients[events[k].data.u64 / 2].stream;
            int fresh = stream->status == 0;
            if (!receive(stream))
                die("a stream ended while it was opened");
            if (fresh && stream->status != 0 && stream->status != 200)
                die("a stream was refused");
            open += fresh && stream->status == 200;
        }
    }
}

/* Lets every client take so many turns; returns how many were whole, their times in `times`. */
static long round_of_turns(Client *clients, long count, long turns, double until, double *times)
{
    struct epoll_event events[MAX_EVENTS];
    long whole = 0, busy = count;
    for (long i = 0; i < count; i++) {
        clients[i].left = turns;
        prompt(&clients[i]);
    }
    while (busy > 0 && now() < until) {
        int n = await(events, until);
        for (int k = 0; k < n; k++) {
            Client *c = &clients[events[k].data.u64 / 2];
            int on_stream = events[k].data.u64 % 2;
            if (!receive(on_stream ? &c->stream : &c->post))
                die(on_stream ? "a stream ended" : "the server hung up");
            if (on_stream)
                read_stream(c);
            else if (c->post.phase == COMPLETE && !c->posted)
                post_answered(c);
            if (c->left > 0 && c->posted && ((c->updated && c->answered) || c->wrong)) {
                times[whole++] = now() - c->sent_at;
                if (--c->left > 0 && !c->wrong)
                    prompt(c);
                else
                    busy--;
            }
        }
    }
    return whole;
}

static void take_turns(const Target *targets, long target_count, long count, long turns, long warmup, const char *headers, double limit)
{
    Client *clients = calloc((size_t)count, sizeof *clients);
    double *times = calloc((size_t)(count * (turns > warmup ? turns : warmup)) + 1, sizeof *times);
    double until = now() + limit;
    long wrong = 0, early = 0;
    if (clients == NULL || times == NULL)
        die("out of memory");
    for (long i = 0; i < count; i++) {
        clients[i].target = &targets[i % target_count];
        clients[i].headers = headers;
        clients[i].id = 1000 + i * 10000000; /* beyond what the handshake has used */
        clients[i].post.fd = dial(port);
        watch(clients[i].post.fd, 2 * i);
    }
    open_streams(clients, count, until);
    if (warmup > 0)
        round_of_turns(clients, count, warmup, until, times);
    double started = now();
    long whole = round_of_turns(clients, count, turns, until, times);
    double seconds = now() - started;
    for (long i = 0; i < count; i++) {
        wrong += clients[i].wrong;
        early += clients[i].early;
    }
    qsort(times, (size_t)whole, sizeof *times, by_value);
    printf("{\"answered\":%ld,\"wanted\":%ld,\"wrong\":%ld,\"early\":%ld,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
           whole, count * turns, wrong, early, seconds, percentile(times, whole, 50) * 1e6, percentile(times, whole, 99) * 1e6,
           percentile(times, whole, 100) * 1e6);
}

/* ---- pace ---- */

/* The moments of writing that stand in the updates of one read; how many there were. */
static long read_moments(Response *stream, double *times)
{
    Buffer *body = &stream->body;
    char *line = body->at, *end = body->at + body->used, *newline;
    long found = 0;
    double arrived = now();
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        char *mark = memmem(line, (size_t)(newline - line), "@now:", 5);
        if (mark != NULL)
            times[found++] = arrived - (double)atoll(mark + 5) / 1e9;
        line = newline + 1;
    }
    body->used = (size_t)(end - line);
    memmove(body->at, line, body->used);
    return found;
}

static void keep_pace(const Target *target, long count, long rate, double limit)
{
    struct epoll_event events[MAX_EVENTS];
    Client client = {.target = target, .headers = "bare"};
    /* More than asked for would be a bug of the server: there is room to see it. */
    double *times = calloc((size_t)count * 2 + 4096, sizeof *times), until = now() + limit;
    char body[512];
    long arrived = 0;
    int answered = 0;
    if (times == NULL)
        die("out of memory");
    client.post.fd = dial(port);
    watch(client.post.fd, 0);
    open_streams(&client, 1, until);
    snprintf(body, sizeof body,
             "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"%s\","
             "\"prompt\":[{\"type\":\"text\",\"text\":\"pace %ld %ld\"}]}}",
             target->session, count, rate);
    expect_response(&client.post);
    send_post(client.post.fd, target, "", body);
    while ((arrived < count || !answered) && arrived < 2 * count && now() < until) {
        int n = await(events, until);
        for (int k = 0; k < n; k++) {
            int on_stream = events[k].data.u64 % 2;
            if (!receive(on_stream ? &client.stream : &client.post))
                die(on_stream ? "the stream ended" : "the server hung up");
            if (on_stream)
                arrived += read_moments(&client.stream, times + arrived);
            else
                answered = client.post.phase == COMPLETE;
        }
    }
    qsort(times, (size_t)arrived, sizeof *times, by_value);
    printf("{\"arrived\":%ld,\"wanted\":%ld,\"status\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n", arrived, count,
           client.post.status, percentile(times, arrived, 50) * 1e6, percentile(times, arrived, 99) * 1e6,
           percentile(times, arrived, 100) * 1e6);
}

int main(int argc, char **argv)
{
    if (argc < 7)
        die("usage: turns turn|pace PORT TARGETS ...");
    long target_count;
    port = (int)number(argv[2]);
    Target *targets = read_targets(argv[3], &target_count);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0)
        die("epoll");
    if (strcmp(argv[1], "turn") == 0 && argc == 9) {
        take_turns(targets, target_count, number(argv[4]), number(argv[5]), number(argv[6]), argv[7], atof(argv[8]));
    } else if (strcmp(argv[1], "pace") == 0 && argc == 7) {
        keep_pace(&targets[0], number(argv[4]), number(argv[5]), atof(argv[6]));
    } else {
        die("wrong arguments");
    }
    return 0;
}
