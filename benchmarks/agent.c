/* A compiled ACP agent for benchmarks: answers every request at once and floods on demand, so that it is never the bottleneck.
 *
 * Speaks newline-delimited JSON-RPC on stdio. A request's id is copied back as the text it came in. Known methods are
 * initialize, session/new and session/prompt; every other request is answered with {"ok":true}; notifications are ignored.
 *
 * A prompt (or any request) whose params contain "burst N B TAG" writes N session/update notifications for params.sessionId
 * before it is answered. The text of each is B bytes long and begins with "@TAG:" and a ten-digit sequence number from 0.
 * "pace N RATE" writes N of them, RATE a second; the text of each is "@now:" and the moment of writing, as CLOCK_MONOTONIC in
 * nanoseconds.
 */
#define _GNU_SOURCE /* memmem */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OUT_SIZE (256 * 1024)
#define MAX_TEXT (1024 * 1024)

typedef struct {
    const char *at;
    size_t len;
} Slice;

typedef struct {
    Slice id, method, params;
} Envelope;

static char out[OUT_SIZE];
static size_t out_used;

static void flush_out(void)
{
    size_t done = 0;
    while (done < out_used) {
        ssize_t n = write(STDOUT_FILENO, out + done, out_used - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            exit(0); /* nobody reads any more */
        done += (size_t)n;
    }
    out_used = 0;
}

static void put(const char *bytes, size_t len)
{
    while (len > 0) {
        if (out_used == OUT_SIZE)
            flush_out();
        size_t part = OUT_SIZE - out_used < len ? OUT_SIZE - out_used : len;
        memcpy(out + out_used, bytes, part);
        out_used += part;
        bytes += part;
        len -= part;
    }
}

static void put_text(const char *text) { put(text, strlen(text)); }

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    return p;
}

/* Past the string whose opening quote is at p. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '\\')
            p++;
        else if (*p == '"')
            return p + 1;
    }
    return end;
}

/* Past the JSON value at p. */
static const char *skip_value(const char *p, const char *end)
{
    if (p < end && *p == '"')
        return skip_string(p, end);
    if (p < end && (*p == '{' || *p == '[')) {
        int depth = 0;
        while (p < end) {
            if (*p == '"') {
                p = skip_string(p, end);
                continue;
            }
            if (*p == '{' || *p == '[')
                depth++;
            else if ((*p == '}' || *p == ']') && --depth == 0)
                return p + 1;
            p++;
        }
        return end;
    }
    while (p < end && *p != ',' && *p != '}' && *p != ']' && *p != ' ')
        p++;
    return p;
}

/* The raw text of a member of the object at p; an empty slice when there is none. */
static Slice member(const char *p, const char *end, const char *name)
{
    size_t name_len = strlen(name);
    p = skip_space(p, end);
    if (p == end || *p != '{')
        return (Slice){NULL, 0};
    p++;
    while (p < end) {
        p = skip_space(p, end);
        if (p == end || *p != '"')
            break;
        const char *key = p + 1;
        p = skip_string(p, end);
        size_t key_len = (size_t)(p - 1 - key);
        p = skip_space(p, end);
        if (p == end || *p != ':')
            break;
        p = skip_space(p + 1, end);
        const char *value = p;
        p = skip_value(p, end);
        if (key_len == name_len && memcmp(key, name, name_len) == 0)
            return (Slice){value, (size_t)(p - value)};
        p = skip_space(p, end);
        if (p == end || *p != ',')
            break;
        p++;
    }
    return (Slice){NULL, 0};
}

static int is(Slice slice, const char *text)
{
    return slice.len == strlen(text) && memcmp(slice.at, text, slice.len) == 0;
}

static void answer(Slice id, const char *result)
{
    put_text("{\"jsonrpc\":\"2.0\",\"id\":");
    put(id.at, id.len);
    put_text(",\"result\":");
    put_text(result);
    put_text("}\n");
}

static void burst(Slice session, long count, long size, const char *tag)
{
    static const char tail[] = "\"}}}}\n";
    char prefix[512];
    int prefix_len = snprintf(prefix, sizeof prefix,
        "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":%.*s,\"update\":"
        "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"@%s:",
        (int)session.len, session.at, tag);
    if (prefix_len < 0 || (size_t)prefix_len >= sizeof prefix)
        return;
    long padding = size - (long)strlen(tag) - 12; /* '@' TAG ':' and ten digits */
    if (padding < 0)
        padding = 0;
    size_t len = (size_t)prefix_len + 10 + (size_t)padding + sizeof tail - 1;
    char *line = malloc(len);
    if (line == NULL)
        exit(1);
    memcpy(line, prefix, (size_t)prefix_len);
    memset(line + prefix_len, '0', 10);
    memset(line + prefix_len + 10, 'x', (size_t)padding);
    memcpy(line + len - (sizeof tail - 1), tail, sizeof tail - 1);
    for (long i = 0; i < count; i++) {
        put(line, len);
        char *digit = line + prefix_len + 9;
        while (*digit == '9')
            *digit-- = '0';
        ++*digit;
    }
    free(line);
}

static long long nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void keep_pace(Slice session, long count, long rate)
{
    char line[512];
    long long due = nanoseconds(), step = 1000000000 / rate;
    for (long i = 0; i < count; i++) {
        due += step;
        struct timespec at = {due / 1000000000, due % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        int len = snprintf(line, sizeof line,
            "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":%.*s,\"update\":"
            "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"@now:%lld\"}}}}\n",
            (int)session.len, session.at, nanoseconds());
        if (len < 0 || (size_t)len >= sizeof line)
            return;
        put(line, (size_t)len);
        flush_out();
    }
}

static void grant(Slice params, Slice session)
{
    const char *wish = memmem(params.at, params.len, "burst ", 6), *other = memmem(params.at, params.len, "pace ", 5);
    wish = wish ? wish : other;
    if (wish == NULL)
        return;
    long count = 0, number = 0;
    char words[96] = "", tag[24] = "";
    size_t rest = (size_t)(params.at + params.len - wish);
    memcpy(words, wish, rest < sizeof words - 1 ? rest : sizeof words - 1);
    if (sscanf(words, "burst %ld %ld %23[A-Za-z0-9]", &count, &number, tag) == 3 && number <= MAX_TEXT)
        burst(session, count, number, tag);
    else if (sscanf(words, "pace %ld %ld", &count, &number) == 2 && number > 0)
        keep_pace(session, count, number);
}

static void handle(const char *line, const char *end)
{
    static long sessions;
    Envelope e = {member(line, end, "id"), member(line, end, "method"), member(line, end, "params")};
    if (e.id.len == 0 || e.method.len == 0)
        return;
    if (is(e.method, "\"initialize\"")) {
        answer(e.id, "{\"protocolVersion\":1,\"agentCapabilities\":{},"
                     "\"agentInfo\":{\"name\":\"bench\",\"version\":\"1\"},\"authMethods\":[]}");
        return;
    }
    if (is(e.method, "\"session/new\"")) {
        char result[64];
        snprintf(result, sizeof result, "{\"sessionId\":\"bench-%ld-%ld\"}", (long)getpid(), ++sessions);
        answer(e.id, result);
        return;
    }
    Slice session = member(e.params.at, e.params.at + e.params.len, "sessionId");
    if (session.len > 0)
        grant(e.params, session);
    answer(e.id, is(e.method, "\"session/prompt\"") ? "{\"stopReason\":\"end_turn\"}" : "{\"ok\":true}");
}

int main(void)
{
    size_t size = 256 * 1024, used = 0;
    char *in = malloc(size);
    if (in == NULL)
        return 1;
    for (;;) {
        if (used == size) {
            size *= 2;
            in = realloc(in, size);
            if (in == NULL)
                return 1;
        }
        ssize_t n = read(STDIN_FILENO, in + used, size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        used += (size_t)n;
        char *line = in, *end = in + used, *newline;
        while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
            handle(line, newline);
            line = newline + 1;
        }
        used = (size_t)(end - line);
        memmove(in, line, used);
        flush_out();
    }
}
