/* What the load clients share: one thread, one epoll, arguments that are numbers, and percentiles. */
#ifndef BENCH_LOOP_H
#define BENCH_LOOP_H

#include "http.h"
#include <sys/epoll.h>

#define MAX_EVENTS 256

static int port, poller;

static inline void watch(int fd, long index)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = (unsigned long)index}};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll");
}

static inline int await(struct epoll_event *events, double until)
{
    double left = until - now();
    if (left <= 0)
        return 0;
    int n = epoll_wait(poller, events, MAX_EVENTS, (int)(left * 1000) + 1);
    return n < 0 ? 0 : n;
}

static inline long number(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0)
        die("not a number in the arguments");
    return value;
}

static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of values that are sorted, as a part of a hundred; 0 without any. */
static inline double percentile(const double *sorted, long count, long part)
{
    return count ? sorted[(count - 1) * part / 100] : 0;
}

#endif
