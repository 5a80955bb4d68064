/* Just enough of an HTTP/1.1 client for the load client: targets from a file, sending, and an incremental response parser
 * that understands Content-Length, chunked transfer-encoding and bodies that end with the connection. Loopback only. */
#ifndef BENCH_HTTP_H
#define BENCH_HTTP_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    char *at;
    size_t used, size;
} Buffer;

/* Where to send: a path, the client's own session (empty without one), and headers that already end in CRLF each. */
typedef struct {
    char *path, *session, *headers;
} Target;

enum phase { HEAD, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, LENGTH, UNTIL_CLOSE, COMPLETE };

typedef struct {
    int fd;
    enum phase phase;
    int status;
    size_t remaining; /* of the chunk or of the body */
    Buffer head;      /* the head, then chunk size lines */
    Buffer body;      /* what was decoded and not yet consumed */
} Response;

static inline void die(const char *what)
{
    fprintf(stderr, "client: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void append(Buffer *b, const char *bytes, size_t len)
{
    if (b->used + len > b->size) {
        size_t size = b->size ? b->size : 1024;
        while (size < b->used + len)
            size *= 2;
        b->at = realloc(b->at, size);
        if (b->at == NULL)
            die("out of memory");
        b->size = size;
    }
    memcpy(b->at + b->used, bytes, len);
    b->used += len;
}

static inline char *read_file(const char *path)
{
    Buffer text = {0};
    char part[65536];
    size_t n;
    FILE *f = fopen(path, "r");
    if (f == NULL)
        die(path);
    while ((n = fread(part, 1, sizeof part, f)) > 0)
        append(&text, part, n);
    fclose(f);
    append(&text, "", 1);
    return text.at;
}

/* One target a line: the path, the session, then headers, separated by tabs. */
static inline Target *read_targets(const char *path, long *count)
{
    Target *targets = NULL;
    *count = 0;
    char *rest = read_file(path), *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (*line == '\0')
            continue;
        Target target = {strsep(&line, "\t"), strsep(&line, "\t"), NULL};
        Buffer headers = {0};
        char *header;
        if (target.session == NULL)
            die("a target without a session");
        while ((header = strsep(&line, "\t")) != NULL) {
            append(&headers, header, strlen(header));
            append(&headers, "\r\n", 2);
        }
        append(&headers, "", 1);
        target.headers = headers.at;
        targets = realloc(targets, (size_t)(*count + 1) * sizeof *targets);
        if (targets == NULL)
            die("out of memory");
        targets[(*count)++] = target;
    }
    if (*count == 0)
        die("no targets");
    return targets;
}

static inline int dial(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Requests are small: a full socket buffer is waited for. */
static inline void send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            poll(&wait, 1, 1000);
            continue;
        }
        if (n < 0)
            return; /* the reading side will see the end */
        bytes += n;
        len -= (size_t)n;
    }
}

static inline void send_get(int fd, const Target *t, const char *last_event_id)
{
    char text[4096];
    int len = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n%s%s%s%s\r\n",
                       t->path, t->headers, *last_event_id ? "Last-Event-ID: " : "", last_event_id, *last_event_id ? "\r\n" : "");
    if (len < 0 || (size_t)len >= sizeof text)
        die("request too long");
    send_all(fd, text, (size_t)len);
}

/* `more` are headers of this one request, each ending in CRLF. */
static inline void send_post(int fd, const Target *t, const char *more, const char *body)
{
    char text[8192];
    int len = snprintf(text, sizeof text,
                       "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n%s%sContent-Length: %zu\r\n\r\n%s",
                       t->path, t->headers, more, strlen(body), body);
    if (len < 0 || (size_t)len >= sizeof text)
        die("request too long");
    send_all(fd, text, (size_t)len);
}

static inline void expect_response(Response *r)
{
    r->phase = HEAD;
    r->status = 0;
    r->head.used = r->body.used = 0;
}

static inline void parse_head(Response *r)
{
    append(&r->head, "", 1);
    r->status = r->head.used > 12 ? atoi(r->head.at + 9) : 0;
    r->phase = UNTIL_CLOSE;
    for (char *line = strstr(r->head.at, "\r\n"); line != NULL; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            r->remaining = strtoul(line + 15, NULL, 10);
            r->phase = r->remaining ? LENGTH : COMPLETE;
        } else if (strncasecmp(line, "transfer-encoding: chunked", 26) == 0) {
            r->phase = CHUNK_SIZE;
            break;
        }
    }
    r->head.used = 0;
}

/* Collects into head up to and including `ending`; true when it is there. Advances *p. */
static inline int collect(Response *r, const char **p, const char *end, const char *ending)
{
    size_t ending_len = strlen(ending);
    while (*p < end) {
        const char *newline = memchr(*p, '\n', (size_t)(end - *p));
        const char *stop = newline ? newline + 1 : end;
        append(&r->head, *p, (size_t)(stop - *p));
        *p = stop;
        if (r->head.used >= ending_len && memcmp(r->head.at + r->head.used - ending_len, ending, ending_len) == 0)
            return 1;
    }
    return 0;
}

/* Decodes what came from the socket; body bytes are appended to r->body. */
static inline void feed(Response *r, const char *p, size_t len)
{
    const char *end = p + len;
    while (p < end && r->phase != COMPLETE) {
        size_t part = (size_t)(end - p);
        switch (r->phase) {
        case HEAD:
            if (collect(r, &p, end, "\r\n\r\n"))
                parse_head(r);
            break;
        case CHUNK_SIZE:
            if (collect(r, &p, end, "\r\n")) {
                append(&r->head, "", 1);
                r->remaining = strtoul(r->head.at, NULL, 16);
                r->head.used = 0;
                r->phase = r->remaining ? CHUNK_DATA : TRAILER;
            }
            break;
        case CHUNK_END:
            if (collect(r, &p, end, "\r\n")) {
                r->head.used = 0;
                r->phase = CHUNK_SIZE;
            }
            break;
        case TRAILER: /* none of the programs sends trailer fields */
            if (collect(r, &p, end, "\r\n"))
                r->phase = COMPLETE;
            break;
        case CHUNK_DATA:
        case LENGTH:
            part = part < r->remaining ? part : r->remaining;
            append(&r->body, p, part);
            p += part;
            r->remaining -= part;
            if (r->remaining == 0)
                r->phase = r->phase == LENGTH ? COMPLETE : CHUNK_END;
            break;
        case UNTIL_CLOSE:
            append(&r->body, p, part);
            p = end;
            break;
        case COMPLETE:
            break;
        }
    }
}

/* Reads once. False when the connection has ended. */
static inline int receive(Response *r)
{
    static char bytes[512 * 1024];
    ssize_t n = recv(r->fd, bytes, sizeof bytes, 0);
    if (n > 0)
        feed(r, bytes, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

#endif
