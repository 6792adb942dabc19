/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * peerbench - one-sided (RMA) microbenchmarks for any MPI-3 library.
 *
 * Build:  mpicc -std=c11 -O2 -Wall -Wextra -pthread -o peerbench peerbench.c
 * Run:    mpiexec -n 2 ./peerbench --impl NAME --transport NAME GROUP...
 *
 * Groups: lat rate both pairs req overlap atomic cas nc sync coll many progress visible mt contend mem
 * out_put out_acc out_rput out_rget wincost stopped limit
 * Groups that use a window run once per flavour given by --flavours
 * (alloc, create, dynamic, shared).  "limit" uses no MPI and is run without a
 * launcher: it measures what the machine itself can do.  So is "hop", which
 * prints the nanoseconds that a cache line takes from core 0 to 1 and back,
 * "version", which prints what MPI library this is, and "empty", which starts
 * and ends MPI.
 *
 * Every result is one JSON line on stdout:
 *   {"impl","transport","test","bytes","value","unit","min","max",...}
 * "value" is the median over batches; min and max are over the same batches.
 * A batch is a timed loop of "iters" operations, so a batch value is a mean.
 * The last line, "launch_waited", is the largest share of its time that a rank
 * was ready to run and had no processor: other work disturbed the run by that.
 *
 * Rank 0 is the origin, rank 1 the target.  In passive-target tests the target
 * waits inside MPI_Barrier (so it does make progress) unless the test says
 * otherwise.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define KIB 1024L
#define MIB (1024L * KIB)
#define ORIGIN 0
#define TARGET 1

/* ---------------------------------------------------------------- options */

static struct {
    const char *impl, *transport, *flavours, *info, *only;
    int rep, batches, pin;
    double batch_ns, budget_ns, mem_limit_s;
    long max_bytes, max_outstanding;
} opt = {
    .impl = "unknown", .transport = "unknown",
    .flavours = "alloc,create,dynamic,shared", .info = NULL, .only = "",
    .rep = 0, .batches = 21, .pin = 1,
    .batch_ns = 2e6, .budget_ns = 400e6, .mem_limit_s = 20,
    .max_bytes = 16 * MIB, .max_outstanding = 4L << 20,
};

static int me, np;
static const char *program; /* its path: files lie beside it */

/*
 * A page that ranks on this machine share outside MPI (NULL when they are not
 * all on one machine), and the latest round trip of a cache line between the
 * cores of rank 0 and rank 1.  On a virtual machine that figure changes with
 * where the host runs the virtual processors, and most two-process results
 * change with it, so every row carries it as "hop_ns".
 */
static _Atomic int64_t *page;
static double hop_ns;

static const long lat_sizes[] = {8,        64,       512,     4 * KIB, 16 * KIB,
                                 64 * KIB, 1 * MIB, 4 * MIB, 16 * MIB};

/* ------------------------------------------------------------- small tools */

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "peerbench: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(2);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (time_t)(ms / 1e3)) * 1e6)};
    nanosleep(&t, NULL);
}

/* Compute without entering MPI. */
static void spin_ms(double ms)
{
    double end = now_ns() + ms * 1e6;
    volatile double x = 1.0;
    while (now_ns() < end)
        for (int i = 0; i < 1000; i++)
            x = x * 1.0000001;
}

static void pin_to(int core)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core % (n > 0 ? n : 1), &set);
    if (opt.pin)
        sched_setaffinity(0, sizeof set, &set);
}

static void *page_alloc(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes ? bytes : 4096) != 0)
        die("out of memory (%zu bytes)", bytes);
    memset(p, 0, bytes);
    return p;
}

/* A field of a file of the kernel, in bytes; 0 when it is not there. */
static double proc_field(const char *path, const char *field)
{
    char line[256];
    double kb = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0)
            kb = atof(line + strlen(field) + 1);
    fclose(f);
    return kb * 1024;
}

static double proc_status(const char *field)
{
    return proc_field("/proc/self/status", field);
}

/* Shared memory of the whole machine, whether or not a process has it mapped. */
static double machine_shmem(void)
{
    FILE *f = fopen("/proc/sys/vm/stat_refresh", "r"); /* adds up what the CPUs have counted */
    if (f) {
        fgetc(f);
        fclose(f);
    }
    return proc_field("/proc/meminfo", "Shmem:");
}

static void reset_peak_rss(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
}

/* Nanoseconds that this thread has run and has waited for a processor. */
static void sched_times(double *ran, double *waited)
{
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    *ran = *waited = 0;
    if (f) {
        if (fscanf(f, "%lf %lf", ran, waited) != 2)
            *ran = *waited = 0;
        fclose(f);
    }
}

/* ----------------------------------------------------------------- results */

static int cmp_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct row {
    const char *test;
    long bytes;
    const char *unit;
    long iters, ops; /* ops: outstanding operations or threads, 0 if unused */
};

static void emit(struct row r, double *v, int n)
{
    if (n < 1)
        return;
    qsort(v, n, sizeof *v, cmp_double);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    printf("{\"impl\":\"%s\",\"transport\":\"%s\",\"test\":\"%s\",\"bytes\":%ld,"
           "\"value\":%.6g,\"unit\":\"%s\",\"min\":%.6g,\"max\":%.6g,"
           "\"batches\":%d,\"iters\":%ld,\"ops\":%ld,\"ranks\":%d,\"rep\":%d,\"hop_ns\":%.0f}\n",
           opt.impl, opt.transport, r.test, r.bytes, median, r.unit, v[0], v[n - 1],
           n, r.iters, r.ops, np, opt.rep, hop_ns);
    fflush(stdout);
}

static void emit1(struct row r, double v)
{
    emit(r, &v, 1);
}

static void emit_fault(const char *test, long bytes, const char *what)
{
    printf("{\"impl\":\"%s\",\"transport\":\"%s\",\"test\":\"%s\",\"bytes\":%ld,"
           "\"value\":null,\"unit\":\"fault\",\"fault\":\"%s\",\"ranks\":%d,\"rep\":%d}\n",
           opt.impl, opt.transport, test, bytes, what, np, opt.rep);
    fflush(stdout);
}

/* ------------------------------------- hop: the distance between two cores */

enum { HOP_BATCHES = 11, HOP_ROUNDS = 50 };

static void hop_origin(_Atomic int64_t *at)
{
    double v[HOP_BATCHES];
    int64_t k = 0;
    for (int b = 0; b < HOP_BATCHES; b++) {
        double t = now_ns();
        for (int i = 0; i < HOP_ROUNDS; i++) {
            atomic_store_explicit(at, ++k, memory_order_release);
            while (atomic_load_explicit(at + 64, memory_order_acquire) != k)
                ;
        }
        v[b] = (now_ns() - t) / HOP_ROUNDS;
    }
    qsort(v, HOP_BATCHES, sizeof *v, cmp_double);
    hop_ns = v[HOP_BATCHES / 2];
}

static void hop_target(_Atomic int64_t *at)
{
    int64_t k;
    do {
        k = atomic_load_explicit(at, memory_order_acquire);
        atomic_store_explicit(at + 64, k, memory_order_release);
    } while (k < HOP_BATCHES * HOP_ROUNDS);
}

/* Collective over all ranks. */
static void measure_hop(void)
{
    if (!page || np != 2)
        return;
    if (me == TARGET)
        atomic_store(page, 0), atomic_store(page + 64, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == ORIGIN)
        hop_origin(page);
    else
        hop_target(page);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The same without MPI, against a child on another core. */
static void measure_hop_child(void)
{
    atomic_store(page, 0), atomic_store(page + 64, 0);
    pid_t p = fork();
    if (p < 0)
        die("fork: %s", strerror(errno));
    if (p == 0) {
        pin_to(1);
        hop_target(page);
        _exit(0);
    }
    hop_origin(page);
    waitpid(p, NULL, 0);
}

static void share_page(void)
{
    char path[64];
    int ok, all, ids[2] = {getpid(), (int)time(NULL)};
    MPI_Bcast(ids, 2, MPI_INT, ORIGIN, MPI_COMM_WORLD);
    snprintf(path, sizeof path, "/dev/shm/peerbench.%d.%d", ids[0], ids[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    void *p = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, 4096) == 0)
        p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    page = p == MAP_FAILED ? NULL : p;
    if (page)
        atomic_fetch_add(page + 8, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    ok = page && atomic_load(page + 8) == np;
    MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (!all)
        page = NULL;
    if (fd >= 0)
        close(fd);
    if (me == ORIGIN || !all)
        unlink(path);
}

/* --------------------------------------------------------- the timing engine */

typedef void op_fn(void *ctx, long n); /* do n operations */

enum who { ORIGIN_ONLY, EVERYONE, NO_MPI };

static double timed(op_fn *fn, void *ctx, long n, enum who who)
{
    if (who == EVERYONE)
        MPI_Barrier(MPI_COMM_WORLD);
    double t = now_ns();
    fn(ctx, n);
    t = now_ns() - t;
    if (who == EVERYONE)
        MPI_Bcast(&t, 1, MPI_DOUBLE, ORIGIN, MPI_COMM_WORLD);
    return t > 1 ? t : 1;
}

/* Convert nanoseconds per operation into the row's unit. */
static double in_unit(double ns, const struct row *r)
{
    if (strcmp(r->unit, "us") == 0)
        return ns / 1e3;
    if (strcmp(r->unit, "ns") == 0)
        return ns;
    if (strcmp(r->unit, "op/s") == 0)
        return 1e9 / ns;
    if (strcmp(r->unit, "MB/s") == 0)
        return (double)r->bytes * 1e3 / ns;
    die("unknown unit %s", r->unit);
    return 0;
}

/*
 * Time fn in batches and emit the median.  `per_call` is the number of
 * operations that one iteration stands for; `fixed` > 0 forces the iterations
 * of a batch.
 */
static void bench(struct row r, op_fn *fn, void *ctx, enum who who, long per_call, long fixed)
{
    double samples[101];
    if (who == NO_MPI)
        measure_hop_child();
    else
        measure_hop();
    if (who != ORIGIN_ONLY || me == ORIGIN) {
        long n = fixed ? fixed : 1;
        double t = timed(fn, ctx, n, who);
        t = timed(fn, ctx, n, who); /* the first call warmed up */
        while (!fixed && n < (1L << 24)) {
            if (t > opt.batch_ns / 4) { /* long enough, unless it was interrupted */
                double again = timed(fn, ctx, n, who);
                t = again < t ? again : t;
                if (t > opt.batch_ns / 4)
                    break;
            }
            n *= t * 16 < opt.batch_ns ? 8 : 2;
            t = timed(fn, ctx, n, who);
        }
        if (!fixed) {
            double per = t / (double)n;
            n = (long)(opt.batch_ns / per);
            n = n < 1 ? 1 : n;
            t = per * (double)n;
        }
        int batches = (int)(opt.budget_ns / t);
        int least = t > 1e9 ? 3 : 5;
        batches = batches > opt.batches ? opt.batches : batches < least ? least : batches;
        for (int b = 0; b < batches; b++)
            samples[b] = in_unit(timed(fn, ctx, n, who) / (double)(n * per_call), &r);
        r.iters = n;
        if (me == ORIGIN)
            emit(r, samples, batches);
    }
    if (who != NO_MPI)
        MPI_Barrier(MPI_COMM_WORLD);
}

/* ----------------------------------------------------------------- windows */

enum flavour { ALLOC, CREATE, DYNAMIC, SHARED };
static const char *const flavour_name[] = {"alloc", "create", "dynamic", "shared"};

struct win {
    MPI_Win win;
    enum flavour flavour;
    char *mem;     /* this rank's window memory */
    char *peer;    /* direct pointer to the target's memory (shared only) */
    MPI_Aint disp; /* displacement of the target's first byte */
    size_t size;
};

static MPI_Info win_info(void)
{
    MPI_Info info = MPI_INFO_NULL;
    if (opt.info) {
        char buf[512], *save = NULL;
        snprintf(buf, sizeof buf, "%s", opt.info);
        MPI_Info_create(&info);
        for (char *kv = strtok_r(buf, ",", &save); kv; kv = strtok_r(NULL, ",", &save)) {
            char *eq = strchr(kv, '=');
            if (!eq)
                die("--info needs key=value");
            *eq = 0;
            MPI_Info_set(info, kv, eq + 1);
        }
    }
    return info;
}

static struct win win_open(enum flavour f, size_t size)
{
    struct win w = {.flavour = f, .size = size};
    MPI_Info info = win_info();
    MPI_Comm c = MPI_COMM_WORLD;
    switch (f) {
    case ALLOC:
        MPI_Win_allocate((MPI_Aint)size, 1, info, c, &w.mem, &w.win);
        break;
    case SHARED:
        MPI_Win_allocate_shared((MPI_Aint)size, 1, info, c, &w.mem, &w.win);
        break;
    case CREATE:
        w.mem = page_alloc(size);
        MPI_Win_create(w.mem, (MPI_Aint)size, 1, info, c, &w.win);
        break;
    case DYNAMIC:
        w.mem = page_alloc(size);
        MPI_Win_create_dynamic(info, c, &w.win);
        MPI_Win_attach(w.win, w.mem, (MPI_Aint)size);
        MPI_Get_address(w.mem, &w.disp);
        MPI_Bcast(&w.disp, 1, MPI_AINT, TARGET, c);
        break;
    }
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    if (f == SHARED) {
        MPI_Aint n;
        int unit;
        MPI_Win_shared_query(w.win, TARGET, &n, &unit, &w.peer);
    }
    return w;
}

/* Zero the window memory, which also makes it resident. */
static void win_touch(struct win *w)
{
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w->win);
    memset(w->mem, 0, w->size);
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Collective; every operation on the window must be complete everywhere. */
static void win_close(struct win *w)
{
    if (w->flavour == DYNAMIC)
        MPI_Win_detach(w->win, w->mem);
    MPI_Win_free(&w->win);
    if (w->flavour == CREATE || w->flavour == DYNAMIC)
        free(w->mem);
}

/* "group/flavour", in one of a few rotating buffers. */
static const char *label(const char *test, enum flavour f)
{
    static char buf[8][96];
    static int next;
    char *b = buf[next++ % 8];
    snprintf(b, sizeof buf[0], "%s/%s", test, flavour_name[f]);
    return b;
}

static void epoch_begin(struct win *w)
{
    if (me == ORIGIN)
        MPI_Win_lock_all(0, w->win);
}

static void epoch_end(struct win *w)
{
    if (me == ORIGIN)
        MPI_Win_unlock_all(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Compare the target's memory with what must have arrived there. */
static void check_target(struct win *w, const char *test, long bytes, const void *want, size_t n)
{
    if (me == TARGET) {
        MPI_Win_lock(MPI_LOCK_SHARED, TARGET, 0, w->win);
        if (memcmp(w->mem, want, n) != 0)
            emit_fault(test, bytes, "wrong data at the target");
        MPI_Win_unlock(TARGET, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ------------------------------------------------- lat: put/get then flush */

struct xfer {
    struct win *w;
    char *buf;
    long bytes, slots;
    bool get; /* otherwise a put */
};

/* A put or a get that so many bytes lie before, here and there. */
static void transfer(const struct xfer *x, int target, MPI_Aint at)
{
    int n = (int)x->bytes;
    if (x->get)
        MPI_Get(x->buf + at, n, MPI_BYTE, target, x->w->disp + at, n, MPI_BYTE, x->w->win);
    else
        MPI_Put(x->buf + at, n, MPI_BYTE, target, x->w->disp + at, n, MPI_BYTE, x->w->win);
}

static void op_flushed(void *c, long n)
{
    struct xfer *x = c;
    for (long i = 0; i < n; i++) {
        transfer(x, TARGET, 0);
        MPI_Win_flush(TARGET, x->w->win);
    }
}

static void op_store(void *c, long n)
{
    struct xfer *x = c;
    for (long i = 0; i < n; i++) {
        memcpy(x->w->peer, x->buf, (size_t)x->bytes);
        MPI_Win_sync(x->w->win);
    }
}

static void op_load(void *c, long n)
{
    struct xfer *x = c;
    for (long i = 0; i < n; i++) {
        MPI_Win_sync(x->w->win);
        memcpy(x->buf, x->w->peer, (size_t)x->bytes);
    }
}

static void group_lat(enum flavour f)
{
    struct win w = win_open(f, (size_t)opt.max_bytes);
    char *buf = page_alloc((size_t)opt.max_bytes), *want = page_alloc((size_t)opt.max_bytes);
    win_touch(&w);
    epoch_begin(&w);
    for (size_t s = 0; s < LEN(lat_sizes) && lat_sizes[s] <= opt.max_bytes; s++) {
        long bytes = lat_sizes[s];
        struct xfer x = {&w, buf, bytes, 1, false};
        memset(want, (int)(s + 1), (size_t)bytes);
        memcpy(buf, want, (size_t)bytes);
        bench((struct row){.test = label("put_flush", f), .bytes = bytes, .unit = "us"},
              op_flushed, &x, ORIGIN_ONLY, 1, 0);
        check_target(&w, label("put_flush", f), bytes, want, (size_t)bytes);
        memset(buf, 0, (size_t)bytes);
        x.get = true;
        bench((struct row){.test = label("get_flush", f), .bytes = bytes, .unit = "us"},
              op_flushed, &x, ORIGIN_ONLY, 1, 0);
        if (me == ORIGIN && memcmp(buf, want, (size_t)bytes) != 0)
            emit_fault(label("get_flush", f), bytes, "wrong data at the origin");
        if (f == SHARED) {
            bench((struct row){.test = "store_sync/shared", .bytes = bytes, .unit = "us"},
                  op_store, &x, ORIGIN_ONLY, 1, 0);
            bench((struct row){.test = "load_sync/shared", .bytes = bytes, .unit = "us"},
                  op_load, &x, ORIGIN_ONLY, 1, 0);
        }
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
    free(want);
}

/* --------------------- stopped: a put is complete at its target after a flush */

/* Whether no thread of a process runs: a signal that stops it returns before. */
static bool is_stopped(int pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    if (threads == NULL)
        return false;
    bool all = true;
    for (struct dirent *thread; all && (thread = readdir(threads)) != NULL;) {
        char stat[512] = "", name[sizeof path + sizeof thread->d_name + 8];
        if (thread->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s/stat", path, thread->d_name);
        int file = open(name, O_RDONLY);
        if (file < 0)
            continue; /* it has ended */
        ssize_t len = read(file, stat, sizeof stat - 1);
        close(file);
        stat[len > 0 ? len : 0] = 0;
        /* Behind the name, which may hold anything, in parentheses. */
        const char *state = strrchr(stat, ')');
        all = state == NULL || state[1] == 0 || state[2] == 'T';
    }
    closedir(threads);
    return all;
}

/* False if it cannot be stopped, or does not within a second. */
static bool stop_process(int pid)
{
    if (kill(pid, SIGSTOP) != 0)
        return false;
    for (int i = 0; i < 1000; i++) {
        if (is_stopped(pid))
            return true;
        sleep_ms(1);
    }
    kill(pid, SIGCONT);
    return false;
}

/* The target is stopped for 300 ms, and the put is flushed meanwhile. */
static void group_stopped(enum flavour f)
{
    struct win w = win_open(f, 4 * KIB);
    char *buf = page_alloc(4 * KIB);
    int pid = (int)getpid();
    win_touch(&w);
    MPI_Bcast(&pid, 1, MPI_INT, TARGET, MPI_COMM_WORLD);
    epoch_begin(&w);
    if (me == ORIGIN) {
        struct xfer x = {&w, buf, 8, 1, false};
        op_flushed(&x, 1);
        sleep_ms(50); /* the target is in the barrier by then */
        /* The child is there before the time runs, and waits until it does. */
        int begin[2];
        pid_t wakes = pipe(begin) == 0 ? fork() : -1;
        if (wakes == 0) {
            char byte;
            close(begin[1]);
            if (read(begin[0], &byte, 1) == 1)
                sleep_ms(300);
            _exit(kill(pid, SIGCONT) != 0);
        }
        if (wakes < 0 || !stop_process(pid)) {
            emit_fault(label("put_stopped", f), 8, "the target could not be stopped");
        } else {
            double t = now_ns();
            if (write(begin[1], "", 1) != 1)
                kill(pid, SIGCONT);
            op_flushed(&x, 1);
            t = now_ns() - t;
            emit1((struct row){.test = label("put_stopped", f), .bytes = 8, .unit = "us",
                               .iters = 1},
                  t / 1e3);
        }
        if (wakes > 0) {
            close(begin[0]);
            close(begin[1]);
            waitpid(wakes, NULL, 0);
        }
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
}

/* ------------------------------------------ rate: many operations, one flush */

#define WINDOW 64 /* operations of a round */
#define RATE_OPS 10000

static void op_window(void *c, long n)
{
    struct xfer *x = c;
    for (long i = 0; i < n; i++) {
        for (long j = 0; j < x->slots; j++)
            transfer(x, TARGET, j * x->bytes);
        MPI_Win_flush(TARGET, x->w->win);
    }
}

static void group_rate(enum flavour f)
{
    static const long sizes[] = {8, 512, 4 * KIB, 16 * KIB};
    struct win w = win_open(f, MIB);
    char *buf = page_alloc(MIB);
    memset(buf, 1, MIB);
    win_touch(&w);
    epoch_begin(&w);
    for (size_t s = 0; s < LEN(sizes); s++) {
        long slots = sizes[s] == 8 ? RATE_OPS : WINDOW;
        struct xfer x = {&w, buf, sizes[s], slots, false};
        struct row r = {.bytes = sizes[s], .unit = "op/s", .ops = slots};
        r.test = label("put_rate", f);
        bench(r, op_window, &x, ORIGIN_ONLY, slots, sizes[s] == 8);
        x.get = true;
        r.test = label("get_rate", f);
        bench(r, op_window, &x, ORIGIN_ONLY, slots, sizes[s] == 8);
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
}

/* --------------------- both: every rank transfers to or from the next at once */

static void op_both(void *c, long n)
{
    struct xfer *x = c;
    int partner = (me + 1) % np;
    for (long i = 0; i < n; i++) {
        transfer(x, partner, 0);
        MPI_Win_flush(partner, x->w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Not of dynamic windows, whose displacements are addresses of the target only. */
static void group_both(enum flavour f)
{
    static const long sizes[] = {64 * KIB, 1 * MIB, 4 * MIB, 16 * MIB};
    struct win w = win_open(f, 16 * MIB);
    char *buf = page_alloc(16 * MIB);
    memset(buf, 1, 16 * MIB);
    win_touch(&w);
    MPI_Win_lock_all(0, w.win);
    for (size_t s = 0; s < LEN(sizes) && sizes[s] <= opt.max_bytes; s++) {
        struct xfer x = {&w, buf, sizes[s], 1, false};
        struct row r = {.bytes = sizes[s], .unit = "us"};
        r.test = label("put_both", f);
        bench(r, op_both, &x, EVERYONE, 1, 0);
        x.get = true;
        r.test = label("get_both", f);
        bench(r, op_both, &x, EVERYONE, 1, 0);
    }
    MPI_Win_unlock_all(w.win);
    MPI_Barrier(MPI_COMM_WORLD);
    win_close(&w);
    free(buf);
}

/* ------------------- pairs: one origin and many targets; several pairs at once */

static void op_in_turn(void *c, long n)
{
    struct xfer *x = c;
    for (long i = 0; i < n; i++) {
        int to = 1 + (int)(i % (np - 1));
        transfer(x, to, 0);
        MPI_Win_flush(to, x->w->win);
    }
}

static void op_pairs(void *c, long n)
{
    struct xfer *x = c;
    int to = me + np / 2;
    for (long i = 0; to < np && i < n; i++) {
        transfer(x, to, 0);
        MPI_Win_flush(to, x->w->win);
    }
}

static void group_pairs(enum flavour f)
{
    static const long sizes[] = {8, 4 * KIB};
    struct win w = win_open(f, 4 * KIB);
    char *buf = page_alloc(4 * KIB);
    win_touch(&w);
    MPI_Win_lock_all(0, w.win);
    for (size_t s = 0; s < LEN(sizes); s++) {
        struct xfer x = {&w, buf, sizes[s], 1, false};
        struct row r = {.bytes = sizes[s], .unit = "us"};
        r.test = label("put_in_turn", f);
        bench(r, op_in_turn, &x, ORIGIN_ONLY, 1, 0);
        r.test = label("put_pairs", f);
        bench(r, op_pairs, &x, EVERYONE, 1, 0);
    }
    MPI_Win_unlock_all(w.win);
    MPI_Barrier(MPI_COMM_WORLD);
    win_close(&w);
    free(buf);
}

/* ---------------------------- req: requests, each waited for, or 64 at a time */

static void request(const struct xfer *x, char *buf, MPI_Aint at, MPI_Request *q)
{
    int n = (int)x->bytes;
    if (x->get)
        MPI_Rget(buf, n, MPI_BYTE, TARGET, x->w->disp + at, n, MPI_BYTE, x->w->win, q);
    else
        MPI_Rput(buf, n, MPI_BYTE, TARGET, x->w->disp + at, n, MPI_BYTE, x->w->win, q);
}

static void op_request(void *c, long n)
{
    struct xfer *x = c;
    MPI_Request q[WINDOW];
    for (long i = 0; i < n; i++) {
        for (long j = 0; j < x->slots; j++)
            request(x, x->buf + j * x->bytes, j * x->bytes, &q[j]);
        if (x->slots == 1)
            MPI_Wait(q, MPI_STATUS_IGNORE);
        else
            MPI_Waitall((int)x->slots, q, MPI_STATUSES_IGNORE);
    }
    if (!x->get)
        MPI_Win_flush(TARGET, x->w->win); /* rput completes locally: pay the rest here */
}

static void requests(struct xfer *x, const char *put, const char *get)
{
    enum flavour f = x->w->flavour;
    for (int kind = 0; kind < 2; kind++) {
        x->get = kind == 1;
        bench((struct row){.test = label(x->get ? get : put, f), .bytes = x->bytes, .unit = "us",
                           .ops = x->slots}, op_request, x, ORIGIN_ONLY, x->slots, 0);
    }
}

static void group_req(enum flavour f)
{
    struct win w = win_open(f, (size_t)opt.max_bytes);
    char *buf = page_alloc((size_t)opt.max_bytes);
    win_touch(&w);
    epoch_begin(&w);
    for (size_t s = 0; s < LEN(lat_sizes) && lat_sizes[s] <= opt.max_bytes; s++) {
        struct xfer x = {&w, buf, lat_sizes[s], 1, false};
        requests(&x, "rput_wait", "rget_wait");
        x.slots = WINDOW;
        if (x.bytes <= 16 * KIB)
            requests(&x, "rput_window", "rget_window");
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
}

/* ------------- overlap: a transfer that is waited for after some computation */

/* Each step waits for the one before, and none touches memory. */
static void compute(long steps)
{
    uint64_t v = 1;
    for (long i = 0; i < steps; i++) {
        v = v * 31 ^ (uint64_t)i;
        __asm__ volatile("" : "+r"(v));
    }
}

enum overlap_kind { OVER_PUT, OVER_RPUT, OVER_RGET };

struct overlap {
    struct xfer x;
    enum overlap_kind kind;
    long steps;
};

static void op_overlap(void *c, long n)
{
    struct overlap *o = c;
    MPI_Request q;
    for (long i = 0; i < n; i++) {
        if (o->kind == OVER_PUT)
            transfer(&o->x, TARGET, 0);
        else
            request(&o->x, o->x.buf, 0, &q);
        compute(o->steps);
        if (o->kind != OVER_PUT)
            MPI_Wait(&q, MPI_STATUS_IGNORE);
        if (o->kind != OVER_RGET)
            MPI_Win_flush(TARGET, o->x.w->win);
    }
}

static void op_compute(void *c, long n)
{
    for (long i = 0; i < n; i++)
        compute(*(long *)c);
}

static double fastest(op_fn *fn, void *c)
{
    double least = 1e18;
    for (int i = 0; i < 20; i++) {
        double t = timed(fn, c, 1, ORIGIN_ONLY);
        least = t < least ? t : least;
    }
    return least;
}

static void group_overlap(enum flavour f)
{
    static const struct {
        const char *name;
        enum overlap_kind kind;
        long bytes;
    } tests[] = {{"overlap_put", OVER_PUT, 8 * KIB},
                 {"overlap_rput", OVER_RPUT, 1 * MIB},
                 {"overlap_rget", OVER_RGET, 1 * MIB}};
    struct win w = win_open(f, MIB);
    char *buf = page_alloc(MIB);
    win_touch(&w);
    epoch_begin(&w);
    for (size_t t = 0; t < LEN(tests); t++) {
        struct overlap o = {{&w, buf, tests[t].bytes, 1, tests[t].kind == OVER_RGET},
                            tests[t].kind, 0};
        if (me == ORIGIN) {
            long trial = 20000;
            double alone = fastest(op_overlap, &o);
            o.steps = (long)((double)trial * alone / fastest(op_compute, &trial)) + 1;
        }
        bench((struct row){.test = label(tests[t].name, f), .unit = "us"}, op_overlap, &o,
              ORIGIN_ONLY, 1, 0);
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
}

/* ------------------------------------------------------------------ atomic */

enum { KIND_ACC, KIND_GET_ACC, KIND_FETCH, KIND_CAS };

struct atom {
    struct win *w;
    char *in, *out;
    int count;
    MPI_Datatype type;
    int kind;
    long done; /* operations issued so far, for the check of sums */
};

/* A sum or a swap that so many bytes lie before; a swap is of what is expected for the same. */
static void atom_at(const struct atom *a, MPI_Aint at)
{
    MPI_Aint to = a->w->disp + at;
    char *out = a->out + at;
    switch (a->kind) {
    case KIND_ACC:
        MPI_Accumulate(a->in, a->count, a->type, TARGET, to, a->count, a->type, MPI_SUM, a->w->win);
        break;
    case KIND_GET_ACC:
        MPI_Get_accumulate(a->in, a->count, a->type, out, a->count, a->type, TARGET, to, a->count,
                           a->type, MPI_SUM, a->w->win);
        break;
    case KIND_FETCH:
        MPI_Fetch_and_op(a->in, out, a->type, TARGET, to, MPI_SUM, a->w->win);
        break;
    case KIND_CAS:
        MPI_Compare_and_swap(a->in, a->in, out, a->type, TARGET, to, a->w->win);
        break;
    }
}

static void op_atom(void *c, long n)
{
    struct atom *a = c;
    for (long i = 0; i < n; i++) {
        atom_at(a, 0);
        MPI_Win_flush(TARGET, a->w->win);
    }
    a->done += n;
}

/* Each swap finds what the one before left. */
static void op_cas(void *c, long n)
{
    struct atom *a = c;
    int64_t *expect = (int64_t *)a->in, want;
    for (long i = 0; i < n; i++) {
        want = *expect + 1;
        MPI_Compare_and_swap(&want, expect, a->out, a->type, TARGET, a->w->disp, a->w->win);
        MPI_Win_flush(TARGET, a->w->win);
        *expect = want;
    }
    a->done += n;
}

static void op_atom_window(void *c, long n)
{
    struct atom *a = c;
    for (long i = 0; i < n; i++) {
        for (long j = 0; j < RATE_OPS; j++)
            atom_at(a, 8 * j);
        MPI_Win_flush(TARGET, a->w->win);
    }
}

enum { I64, DBL };
struct atom_test {
    const char *name;
    int kind, type, count;
};

static void atom_tests(struct win *w, const struct atom_test *tests, size_t n, char *in, char *out)
{
    const size_t size = w->size;
    char *want = page_alloc(size);
    for (size_t t = 0; t < n; t++) {
        int count = tests[t].count;
        struct atom a = {w, in, out, count,
                         tests[t].type == I64 ? MPI_INT64_T : MPI_DOUBLE, tests[t].kind, 0};
        memset(in, 0, size);
        for (int i = 0; i < count && tests[t].kind != KIND_CAS; i++) {
            if (tests[t].type == I64)
                ((int64_t *)in)[i] = 1;
            else
                ((double *)in)[i] = 1.0;
        }
        win_touch(w);
        epoch_begin(w);
        const char *name = label(tests[t].name, w->flavour);
        bench((struct row){.test = name, .bytes = 8L * count, .unit = "us"},
              a.kind == KIND_CAS ? op_cas : op_atom, &a, ORIGIN_ONLY, 1, 0);
        epoch_end(w);
        MPI_Bcast(&a.done, 1, MPI_LONG, ORIGIN, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++) {
            if (tests[t].type == I64)
                ((int64_t *)want)[i] = a.done;
            else
                ((double *)want)[i] = (double)a.done;
        }
        check_target(w, name, 8L * count, want, 8 * (size_t)count);
    }
    free(want);
}

static void atom_rate(struct win *w, const char *name, int kind, char *in, char *out)
{
    *(int64_t *)in = kind != KIND_CAS;
    win_touch(w);
    epoch_begin(w);
    struct atom a = {w, in, out, 1, MPI_INT64_T, kind, 0};
    bench((struct row){.test = label(name, w->flavour), .bytes = 8, .unit = "op/s",
                       .ops = RATE_OPS}, op_atom_window, &a, ORIGIN_ONLY, RATE_OPS, 1);
    epoch_end(w);
}

static void group_atomic(enum flavour f)
{
    static const int counts[] = {8, 64, 512, 1024, 8192, 131072};
    static const struct atom_test ones[] = {
        {"acc_sum_i64", KIND_ACC, I64, 1},
        {"acc_sum_f64", KIND_ACC, DBL, 1},
        {"get_acc_sum_i64", KIND_GET_ACC, I64, 1},
        {"fetch_op_sum_i64", KIND_FETCH, I64, 1},
        {"fetch_op_sum_f64", KIND_FETCH, DBL, 1},
    };
    const size_t size = 2 * MIB;
    struct win w = win_open(f, size);
    char *in = page_alloc(size), *out = page_alloc(size);
    atom_tests(&w, ones, LEN(ones), in, out);
    for (size_t c = 0; c < LEN(counts); c++) {
        const struct atom_test arrays[] = {{"acc_sum_f64", KIND_ACC, DBL, counts[c]},
                                           {"acc_sum_i64", KIND_ACC, I64, counts[c]},
                                           {"get_acc_sum_f64", KIND_GET_ACC, DBL, counts[c]}};
        atom_tests(&w, arrays, LEN(arrays), in, out);
    }
    atom_rate(&w, "acc_rate_i64", KIND_ACC, in, out);
    atom_rate(&w, "get_acc_rate_i64", KIND_GET_ACC, in, out);
    atom_rate(&w, "fetch_op_rate_i64", KIND_FETCH, in, out);
    win_close(&w);
    free(in);
    free(out);
}

/* On its own: in Open MPI 4.1.4 it ends the job, see docs/performance.md of rma. */
static void group_cas(enum flavour f)
{
    static const struct atom_test test = {"cas_i64", KIND_CAS, I64, 1};
    struct win w = win_open(f, 8 * RATE_OPS);
    char *in = page_alloc(w.size), *out = page_alloc(w.size);
    atom_tests(&w, &test, 1, in, out);
    atom_rate(&w, "cas_rate_i64", KIND_CAS, in, out);
    win_close(&w);
    free(in);
    free(out);
}

/* ------------------------------------------------------- nc: strided puts */

struct strided {
    struct win *w;
    char *buf;
    int count;
    MPI_Datatype otype, ttype;
    int ocount, tcount;
    bool get;
};

static void op_strided(void *c, long n)
{
    struct strided *s = c;
    MPI_Aint at = s->w->disp;
    for (long i = 0; i < n; i++) {
        if (s->get)
            MPI_Get(s->buf, s->ocount, s->otype, TARGET, at, s->tcount, s->ttype, s->w->win);
        else
            MPI_Put(s->buf, s->ocount, s->otype, TARGET, at, s->tcount, s->ttype, s->w->win);
        MPI_Win_flush(TARGET, s->w->win);
    }
}

static void group_nc(enum flavour f)
{
    static const struct {
        const char *vv, *cv, *gcv;
        int block, stride;
    } shapes[] = {{"put_vec1s2", "put_contig_vec1s2", "get_contig_vec1s2", 1, 2},
                  {"put_vec8s16", "put_contig_vec8s16", "get_contig_vec8s16", 8, 16}};
    static const long totals[] = {1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB};
    const size_t size = 2 * MIB;
    struct win w = win_open(f, size);
    char *buf = page_alloc(size), *want = page_alloc(size);
    for (size_t s = 0; s < LEN(shapes); s++) {
        for (size_t t = 0; t < LEN(totals); t++) {
            long total = totals[t];
            int blocks = (int)(total / shapes[s].block);
            MPI_Datatype vec;
            MPI_Type_vector(blocks, shapes[s].block, shapes[s].stride, MPI_BYTE, &vec);
            MPI_Type_commit(&vec);
            struct strided x = {&w, buf, blocks, vec, vec, 1, 1, false};
            memset(buf, 7, size);
            win_touch(&w);
            epoch_begin(&w);
            bench((struct row){.test = label(shapes[s].vv, f), .bytes = total, .unit = "us"},
                  op_strided, &x, ORIGIN_ONLY, 1, 0);
            epoch_end(&w);
            memset(want, 0, size);
            for (int b = 0; b < blocks; b++)
                memset(want + (long)b * shapes[s].stride, 7, (size_t)shapes[s].block);
            check_target(&w, label(shapes[s].vv, f), total, want, (size_t)(2 * total));
            x.otype = MPI_BYTE;
            x.ocount = (int)total;
            epoch_begin(&w);
            bench((struct row){.test = label(shapes[s].cv, f), .bytes = total, .unit = "us"},
                  op_strided, &x, ORIGIN_ONLY, 1, 0);
            x.get = true;
            bench((struct row){.test = label(shapes[s].gcv, f), .bytes = total, .unit = "us"},
                  op_strided, &x, ORIGIN_ONLY, 1, 0);
            epoch_end(&w);
            MPI_Type_free(&vec);
        }
    }
    win_close(&w);
    free(buf);
    free(want);
}

/* ------------------------------------------------- sync: epochs and flushes */

struct sync {
    struct win *w;
    char *buf;
    MPI_Group peer;
    int lock, assert_open, assert_close, puts, all;
};

static void put8(struct sync *s)
{
    if (s->puts)
        MPI_Put(s->buf, 8, MPI_BYTE, TARGET, s->w->disp, 8, MPI_BYTE, s->w->win);
}

static void op_fence_pair(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++) {
        MPI_Win_fence(s->assert_open, s->w->win);
        if (me == ORIGIN)
            put8(s);
        MPI_Win_fence(s->assert_close, s->w->win);
    }
}

static void op_pscw(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++) {
        if (me == ORIGIN) {
            MPI_Win_start(s->peer, 0, s->w->win);
            put8(s);
            MPI_Win_complete(s->w->win);
        } else if (me == TARGET) {
            MPI_Win_post(s->peer, 0, s->w->win);
            MPI_Win_wait(s->w->win);
        }
    }
}

static void op_lock(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++) {
        if (s->all)
            MPI_Win_lock_all(s->assert_open, s->w->win);
        else
            MPI_Win_lock(s->lock, TARGET, s->assert_open, s->w->win);
        put8(s);
        if (s->all)
            MPI_Win_unlock_all(s->w->win);
        else
            MPI_Win_unlock(TARGET, s->w->win);
    }
}

static void op_flush(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++)
        MPI_Win_flush(TARGET, s->w->win);
}

static void op_flush_all(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++)
        MPI_Win_flush_all(s->w->win);
}

static void op_flush_local(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++)
        MPI_Win_flush_local(TARGET, s->w->win);
}

static void op_win_sync(void *c, long n)
{
    struct sync *s = c;
    for (long i = 0; i < n; i++)
        MPI_Win_sync(s->w->win);
}

static void op_barrier(void *c, long n)
{
    (void)c;
    for (long i = 0; i < n; i++)
        MPI_Barrier(MPI_COMM_WORLD);
}

static void sync_row(const char *test, enum flavour f, op_fn *fn, struct sync *s, enum who who)
{
    bench((struct row){.test = label(test, f), .bytes = s->puts ? 8 : 0, .unit = "us"}, fn, s, who,
          1, 0);
}

static void group_sync(enum flavour f)
{
    struct win w = win_open(f, 4 * KIB);
    char *buf = page_alloc(4 * KIB);
    MPI_Group world;
    struct sync s = {.w = &w, .buf = buf};
    int peer = me == ORIGIN ? TARGET : ORIGIN;
    win_touch(&w);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &peer, &s.peer);

    sync_row("mpi_barrier", f, op_barrier, &s, EVERYONE);
    for (s.puts = 0; s.puts <= 1; s.puts++) {
        s.assert_open = s.assert_close = 0;
        sync_row("fence_pair", f, op_fence_pair, &s, EVERYONE);
        s.assert_open = MPI_MODE_NOPRECEDE;
        s.assert_close = MPI_MODE_NOSUCCEED;
        sync_row("fence_pair_assert", f, op_fence_pair, &s, EVERYONE);
    }
    s.assert_open = s.assert_close = 0;
    for (s.puts = 0; s.puts <= 1; s.puts++)
        sync_row("pscw", f, op_pscw, &s, EVERYONE);
    for (s.puts = 0; s.puts <= 1; s.puts++) {
        s.lock = MPI_LOCK_SHARED;
        sync_row("lock_shared", f, op_lock, &s, ORIGIN_ONLY);
        s.lock = MPI_LOCK_EXCLUSIVE;
        sync_row("lock_excl", f, op_lock, &s, ORIGIN_ONLY);
        s.all = 1;
        sync_row("lock_all", f, op_lock, &s, ORIGIN_ONLY);
        s.all = 0;
    }
    s.puts = 1;
    s.assert_open = MPI_MODE_NOCHECK;
    sync_row("lock_excl_nocheck", f, op_lock, &s, ORIGIN_ONLY);
    s.puts = 0;
    epoch_begin(&w);
    sync_row("flush_empty", f, op_flush, &s, ORIGIN_ONLY);
    sync_row("flush_local_empty", f, op_flush_local, &s, ORIGIN_ONLY);
    sync_row("flush_all_empty", f, op_flush_all, &s, ORIGIN_ONLY);
    sync_row("win_sync", f, op_win_sync, &s, ORIGIN_ONLY);
    epoch_end(&w);
    MPI_Group_free(&s.peer);
    MPI_Group_free(&world);
    win_close(&w);
    free(buf);
}

/* ------------------------------ coll: collective operations that move much */

struct coll {
    char *buf;
    int bytes; /* that each rank has when it is over */
};

static void op_bcast(void *c, long n)
{
    struct coll *x = c;
    for (long i = 0; i < n; i++)
        MPI_Bcast(x->buf, x->bytes, MPI_BYTE, ORIGIN, MPI_COMM_WORLD);
}

static void op_allreduce(void *c, long n)
{
    struct coll *x = c;
    for (long i = 0; i < n; i++)
        MPI_Allreduce(MPI_IN_PLACE, x->buf, x->bytes / (int)sizeof(double), MPI_DOUBLE, MPI_SUM,
                      MPI_COMM_WORLD);
}

static void op_allgather(void *c, long n)
{
    struct coll *x = c;
    for (long i = 0; i < n; i++)
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x->buf, x->bytes / np, MPI_BYTE,
                      MPI_COMM_WORLD);
}

static void op_alltoall(void *c, long n)
{
    struct coll *x = c;
    for (long i = 0; i < n; i++)
        MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x->buf, x->bytes / np, MPI_BYTE,
                     MPI_COMM_WORLD);
}

static void group_coll(enum flavour f)
{
    static const long sizes[] = {64 * KIB, MIB, 64 * MIB};
    static const struct {
        const char *name;
        op_fn *fn;
    } ops[] = {{"bcast", op_bcast}, {"allreduce_sum_f64", op_allreduce},
               {"allgather", op_allgather}, {"alltoall", op_alltoall}};
    (void)f; /* no window */
    for (size_t s = 0; s < LEN(sizes); s++) {
        struct coll x = {page_alloc((size_t)sizes[s]), (int)sizes[s]};
        memset(x.buf, 0, (size_t)sizes[s]);
        for (size_t i = 0; i < LEN(ops); i++)
            bench((struct row){.test = ops[i].name, .bytes = sizes[s], .unit = "us"}, ops[i].fn, &x,
                  EVERYONE, 1, 0);
        free(x.buf);
    }
}

/* ------------------- hacc: particles of all ranks in one file, by MPI-IO */

enum { HACC_FIELDS = 9 };
static const int hacc_size[HACC_FIELDS] = {4, 4, 4, 4, 4, 4, 4, 8, 2}; /* of a particle */

typedef int hacc_write_fn(MPI_File, MPI_Offset, const void *, int, MPI_Datatype, MPI_Status *);
typedef int hacc_read_fn(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);

struct hacc {
    MPI_File file;
    char *buf;
    long particles; /* of each rank */
    MPI_Offset begin;
    hacc_write_fn *write;
    hacc_read_fn *read;
};

static void op_hacc(void *c, long n)
{
    struct hacc *x = c;
    for (long i = 0; i < n; i++) {
        long at = 0;
        for (int f = 0; f < HACC_FIELDS; f++) {
            int bytes = (int)(hacc_size[f] * x->particles), rc;
            if (x->write)
                rc = x->write(x->file, x->begin + at, x->buf + at, bytes, MPI_BYTE,
                              MPI_STATUS_IGNORE);
            else
                rc = x->read(x->file, x->begin + at, x->buf + at, bytes, MPI_BYTE,
                             MPI_STATUS_IGNORE);
            if (rc != MPI_SUCCESS)
                die("MPI-IO failed with %d", rc);
            at += bytes;
        }
        if (x->write && MPI_File_sync(x->file) != MPI_SUCCESS)
            die("MPI_File_sync failed");
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void group_hacc(enum flavour f)
{
    static const long counts[] = {16 * KIB, 128 * KIB, MIB};
    (void)f; /* no window */
    char path[4096];
    snprintf(path, sizeof path, "%s-hacc.tmp", program);
    for (size_t s = 0; s < LEN(counts); s++) {
        struct hacc x = {.particles = counts[s]};
        long each = 0;
        for (int i = 0; i < HACC_FIELDS; i++)
            each += hacc_size[i] * x.particles;
        x.begin = (MPI_Offset)me * each;
        x.buf = page_alloc((size_t)each);
        memset(x.buf, 7, (size_t)each);
        int mode = MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE;
        if (MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &x.file) != MPI_SUCCESS)
            die("cannot open %s", path);
        struct row r = {.bytes = each * np, .unit = "us"};
        x.write = MPI_File_write_at;
        r.test = "hacc_write_at", bench(r, op_hacc, &x, EVERYONE, 1, 0);
        x.write = MPI_File_write_at_all;
        r.test = "hacc_write_at_all", bench(r, op_hacc, &x, EVERYONE, 1, 0);
        x.write = NULL;
        x.read = MPI_File_read_at;
        memset(x.buf, 0, (size_t)each);
        r.test = "hacc_read_at", bench(r, op_hacc, &x, EVERYONE, 1, 0);
        for (long i = 0; i < each; i++)
            if (x.buf[i] != 7)
                die("byte %ld was not read as it was written", i);
        x.read = MPI_File_read_at_all;
        r.test = "hacc_read_at_all", bench(r, op_hacc, &x, EVERYONE, 1, 0);
        MPI_File_close(&x.file);
        free(x.buf);
    }
}

/* -------------------------------------- many: more ranks than processors */

static void group_many(enum flavour f)
{
    enum { ROUNDS = 3 };
    struct win w = win_open(f, 4 * KIB);
    struct sync s = {.w = &w};
    int64_t value = 0;
    double rate[ROUNDS];
    win_touch(&w);
    bench((struct row){.test = label("many_barrier", f), .unit = "us"}, op_barrier, &s, EVERYONE,
          1, 0);
    bench((struct row){.test = label("many_fence_pair", f), .unit = "us"}, op_fence_pair, &s,
          EVERYONE, 1, 0);
    for (int r = 0; r < ROUNDS; r++) {
        long n = 0, sum;
        MPI_Barrier(MPI_COMM_WORLD);
        double t0 = now_ns(), t;
        while ((t = now_ns() - t0) < 500e6 || n == 0) {
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, TARGET, 0, w.win);
            MPI_Get(&value, 1, MPI_INT64_T, TARGET, w.disp, 1, MPI_INT64_T, w.win);
            MPI_Win_flush(TARGET, w.win);
            value += 1;
            MPI_Put(&value, 1, MPI_INT64_T, TARGET, w.disp, 1, MPI_INT64_T, w.win);
            MPI_Win_unlock(TARGET, w.win);
            n++;
        }
        MPI_Reduce(&n, &sum, 1, MPI_LONG, MPI_SUM, ORIGIN, MPI_COMM_WORLD);
        rate[r] = (double)sum * 1e9 / t;
    }
    if (me == ORIGIN)
        emit((struct row){.test = label("many_lock_incr", f), .unit = "op/s", .ops = np}, rate,
             ROUNDS);
    win_close(&w);
}

/* ------------------- progress: the target computes for 200 ms outside MPI */

enum prog_op { P_PUT, P_GET, P_ACC, P_FETCH, P_CAS, P_LOCK_PUT };

static void prog_once(enum prog_op op, struct win *w, char *buf, int bytes)
{
    int64_t *one = (int64_t *)buf, *old = one + 1;
    switch (op) {
    case P_PUT:
        MPI_Put(buf, bytes, MPI_BYTE, TARGET, w->disp, bytes, MPI_BYTE, w->win);
        break;
    case P_GET:
        MPI_Get(buf, bytes, MPI_BYTE, TARGET, w->disp, bytes, MPI_BYTE, w->win);
        break;
    case P_ACC:
        MPI_Accumulate(buf, bytes / 8, MPI_INT64_T, TARGET, w->disp, bytes / 8, MPI_INT64_T,
                       MPI_SUM, w->win);
        break;
    case P_FETCH:
        MPI_Fetch_and_op(one, old, MPI_INT64_T, TARGET, w->disp, MPI_SUM, w->win);
        break;
    case P_CAS:
        MPI_Compare_and_swap(one, one, old, MPI_INT64_T, TARGET, w->disp, w->win);
        break;
    case P_LOCK_PUT:
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, TARGET, 0, w->win);
        MPI_Put(buf, bytes, MPI_BYTE, TARGET, w->disp, bytes, MPI_BYTE, w->win);
        MPI_Win_unlock(TARGET, w->win);
        return;
    }
    MPI_Win_flush(TARGET, w->win);
}

static void group_progress(enum flavour f)
{
    static const struct {
        const char *name;
        enum prog_op op;
        int bytes;
    } tests[] = {
        {"busy_put", P_PUT, 8},       {"busy_put", P_PUT, (int)MIB},
        {"busy_get", P_GET, 8},       {"busy_get", P_GET, (int)MIB},
        {"busy_acc", P_ACC, 8},       {"busy_acc", P_ACC, 8192},
        {"busy_fetch_op", P_FETCH, 8}, {"busy_cas", P_CAS, 8},
        {"busy_lock_put_unlock", P_LOCK_PUT, 8},
    };
    enum { ROUNDS = 5 };
    const size_t size = 1 * MIB;
    struct win w = win_open(f, size);
    char *buf = page_alloc(size);
    win_touch(&w);
    for (size_t t = 0; t < LEN(tests); t++) {
        if (!strstr(tests[t].name, opt.only))
            continue;
        bool own_lock = tests[t].op == P_LOCK_PUT;
        double v[ROUNDS];
        if (!own_lock)
            epoch_begin(&w);
        if (me == ORIGIN) /* warm up while the target is inside the barrier */
            for (int i = 0; i < 3; i++)
                prog_once(tests[t].op, &w, buf, tests[t].bytes);
        for (int r = 0; r < ROUNDS; r++) {
            if (r == 0)
                measure_hop();
            MPI_Barrier(MPI_COMM_WORLD);
            if (me == ORIGIN) {
                sleep_ms(20);
                double t0 = now_ns();
                prog_once(tests[t].op, &w, buf, tests[t].bytes);
                v[r] = (now_ns() - t0) / 1e3;
            } else if (me == TARGET) {
                spin_ms(200);
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (me == ORIGIN)
            emit((struct row){.test = label(tests[t].name, f), .bytes = tests[t].bytes,
                              .unit = "us", .iters = 1},
                 v, ROUNDS);
        if (!own_lock)
            epoch_end(&w);
    }
    win_close(&w);
    free(buf);
}

/*
 * visible: when flush returns, is the data in the target's memory?  The target
 * stays outside MPI; the origin tells it through the shared page that the flush
 * has returned.  1: the data was there, 0: it was
 * not, -1: flush did not return within 300 ms, so it waits for the target.
 */
static void group_visible(enum flavour f)
{
    enum { ROUNDS = 5 };
    struct win w = win_open(f, 4 * KIB);
    int64_t *buf = page_alloc(4 * KIB);
    double seen[2][ROUNDS];
    _Atomic int64_t *flag = page + 128;
    if (!page)
        die("the ranks share no memory");
    for (int acc = 0; acc < 2; acc++) {
        win_touch(&w);
        epoch_begin(&w);
        int64_t sum = 0;
        for (int r = 0; r <= ROUNDS; r++) { /* the first round warms up */
            MPI_Barrier(MPI_COMM_WORLD);
            sum += r + 1;
            *buf = acc ? r + 1 : sum;
            if (me == ORIGIN) {
                if (r > 0)
                    sleep_ms(20);
                if (acc)
                    MPI_Accumulate(buf, 1, MPI_INT64_T, TARGET, w.disp, 1, MPI_INT64_T, MPI_SUM,
                                   w.win);
                else
                    MPI_Put(buf, 8, MPI_BYTE, TARGET, w.disp, 8, MPI_BYTE, w.win);
                MPI_Win_flush(TARGET, w.win);
                atomic_store(flag, acc * 100 + r + 1);
            } else if (me == TARGET && r > 0) {
                double end = now_ns() + 300e6, v = -1;
                while (now_ns() < end && v < 0)
                    if (atomic_load(flag) == acc * 100 + r + 1)
                        v = *(volatile int64_t *)w.mem == sum;
                seen[acc][r - 1] = v;
            }
        }
        epoch_end(&w);
        if (me == TARGET)
            emit((struct row){.test = label(acc ? "flush_visible_acc" : "flush_visible_put", f),
                              .bytes = 8, .unit = "flag", .iters = 1},
                 seen[acc], ROUNDS);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    win_close(&w);
    free(buf);
}

/* ------------------------------------------------ mt: threads put and flush */

struct worker {
    pthread_t id;
    struct win *w;
    char *buf;
    long done;
    MPI_Aint disp;
    pthread_barrier_t *gate;
    atomic_int *stop;
};

static void *mt_main(void *p)
{
    struct worker *k = p;
    pthread_barrier_wait(k->gate);
    while (!atomic_load_explicit(k->stop, memory_order_relaxed)) {
        MPI_Put(k->buf, 8, MPI_BYTE, TARGET, k->disp, 8, MPI_BYTE, k->w->win);
        MPI_Win_flush(TARGET, k->w->win);
        k->done++;
    }
    return NULL;
}

static void group_mt(enum flavour f)
{
    enum { BATCHES = 7, MAX_THREADS = 4 };
    struct win w = win_open(f, 64 * KIB);
    char *buf = page_alloc(64 * KIB);
    win_touch(&w);
    epoch_begin(&w);
    for (int threads = 1; threads <= MAX_THREADS; threads *= 2) {
        double lat[BATCHES], rate[BATCHES];
        for (int b = 0; me == ORIGIN && b < BATCHES; b++) {
            struct worker k[MAX_THREADS];
            pthread_barrier_t gate;
            atomic_int stop = 0;
            long total = 0;
            pthread_barrier_init(&gate, NULL, (unsigned)threads + 1);
            for (int i = 0; i < threads; i++) {
                k[i] = (struct worker){.w = &w, .buf = buf + 4 * KIB * i, .gate = &gate,
                                       .stop = &stop, .disp = w.disp + 4 * KIB * i};
                pthread_create(&k[i].id, NULL, mt_main, &k[i]);
            }
            pthread_barrier_wait(&gate);
            double t = now_ns();
            sleep_ms(100);
            atomic_store(&stop, 1);
            for (int i = 0; i < threads; i++) {
                pthread_join(k[i].id, NULL);
                total += k[i].done;
            }
            t = now_ns() - t;
            pthread_barrier_destroy(&gate);
            lat[b] = t * threads / (double)total / 1e3;
            rate[b] = (double)total * 1e9 / t;
        }
        if (me == ORIGIN) {
            emit((struct row){.test = label("mt_put_flush", f), .bytes = 8, .unit = "us",
                              .ops = threads}, lat, BATCHES);
            emit((struct row){.test = label("mt_put_flush_rate", f), .bytes = 8, .unit = "op/s",
                              .ops = threads}, rate, BATCHES);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    epoch_end(&w);
    win_close(&w);
    free(buf);
}

/* --------------------------- contend: every rank increments under one lock */

static void group_contend(enum flavour f)
{
    enum { ROUNDS = 5 };
    struct win w = win_open(f, 4 * KIB);
    int64_t *val = page_alloc(4 * KIB), one = 1, old;
    double rate[ROUNDS], share[ROUNDS];
    int64_t total = 0;
    for (int kind = 0; kind < 2; kind++) { /* 0: exclusive lock, 1: fetch_and_op */
        win_touch(&w);
        total = 0;
        if (kind == 1)
            MPI_Win_lock_all(0, w.win);
        for (int r = 0; r < ROUNDS; r++) {
            long n = 0, least, most, sum;
            MPI_Barrier(MPI_COMM_WORLD);
            double t0 = now_ns(), t;
            while ((t = now_ns() - t0) < 200e6) {
                if (kind == 0) {
                    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, TARGET, 0, w.win);
                    MPI_Get(val, 1, MPI_INT64_T, TARGET, w.disp, 1, MPI_INT64_T, w.win);
                    MPI_Win_flush(TARGET, w.win);
                    *val += 1;
                    MPI_Put(val, 1, MPI_INT64_T, TARGET, w.disp, 1, MPI_INT64_T, w.win);
                    MPI_Win_unlock(TARGET, w.win);
                } else {
                    MPI_Fetch_and_op(&one, &old, MPI_INT64_T, TARGET, w.disp, MPI_SUM, w.win);
                    MPI_Win_flush(TARGET, w.win);
                }
                n++;
            }
            MPI_Reduce(&n, &least, 1, MPI_LONG, MPI_MIN, ORIGIN, MPI_COMM_WORLD);
            MPI_Reduce(&n, &most, 1, MPI_LONG, MPI_MAX, ORIGIN, MPI_COMM_WORLD);
            MPI_Allreduce(&n, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
            total += sum;
            rate[r] = (double)sum * 1e9 / t;
            share[r] = most ? (double)least / (double)most : 0;
        }
        if (kind == 1)
            MPI_Win_unlock_all(w.win);
        MPI_Barrier(MPI_COMM_WORLD);
        const char *name = label(kind ? "contend_fetch_op" : "contend_lock_incr", f);
        if (me == ORIGIN) {
            emit((struct row){.test = name, .bytes = 8, .unit = "op/s", .ops = np}, rate, ROUNDS);
            name = label(kind ? "contend_fetch_op_min_share" : "contend_lock_min_share", f);
            emit((struct row){.test = name, .bytes = 8, .unit = "ratio", .ops = np}, share, ROUNDS);
        }
        check_target(&w, name, 8, &total, sizeof total);
    }
    win_close(&w);
    free(val);
}

/* -------------------------- mem: growth with operations that are outstanding */

static void mem_issue(struct win *w, int64_t *buf, long n, bool acc)
{
    for (long i = 0; i < n; i++) {
        MPI_Aint at = w->disp + (i * 8) % (MPI_Aint)w->size;
        if (acc)
            MPI_Accumulate(buf, 1, MPI_INT64_T, TARGET, at, 1, MPI_INT64_T, MPI_SUM, w->win);
        else
            MPI_Put(buf, 8, MPI_BYTE, TARGET, at, 8, MPI_BYTE, w->win);
    }
}

/* Touch each page of the target once, so that mapping it is not counted. */
static void mem_map_pages(struct win *w, int64_t *buf)
{
    if (me == ORIGIN) {
        MPI_Win_lock(MPI_LOCK_SHARED, TARGET, 0, w->win);
        for (size_t at = 0; at < w->size; at += 4096) {
            MPI_Put(buf, 8, MPI_BYTE, TARGET, w->disp + (MPI_Aint)at, 8, MPI_BYTE, w->win);
            MPI_Win_flush(TARGET, w->win);
        }
        MPI_Win_unlock(TARGET, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void group_mem(enum flavour f)
{
    enum { FENCE, LOCK, LOCK_ABSENT };
    static const struct {
        const char *name;
        int epoch;
        bool acc;
    } kinds[] = {
        {"mem_fence_put", FENCE, false},         {"mem_fence_acc", FENCE, true},
        {"mem_lock_put", LOCK, false},           {"mem_lock_acc", LOCK, true},
        {"mem_absent_put", LOCK_ABSENT, false},  {"mem_absent_acc", LOCK_ABSENT, true},
    };
    for (size_t k = 0; k < LEN(kinds); k++) {
        if (!strstr(kinds[k].name, opt.only))
            continue;
        struct win w = win_open(f, 32 * MIB);
        int64_t *buf = page_alloc(4 * KIB);
        win_touch(&w);
        mem_map_pages(&w, buf);
        double base = proc_status("VmRSS:");
        for (long n = 1024; n <= opt.max_outstanding; n *= 4) {
            double t = 0, peak[2], grow, issue = 0;
            reset_peak_rss();
            MPI_Barrier(MPI_COMM_WORLD);
            double t0 = now_ns();
            if (kinds[k].epoch == FENCE) {
                MPI_Win_fence(0, w.win);
                if (me == ORIGIN)
                    mem_issue(&w, buf, n, kinds[k].acc);
                issue = now_ns() - t0;
                MPI_Win_fence(0, w.win);
                t = now_ns() - t0;
            } else if (me == ORIGIN) {
                MPI_Win_lock(MPI_LOCK_SHARED, TARGET, 0, w.win);
                mem_issue(&w, buf, n, kinds[k].acc);
                issue = now_ns() - t0;
                MPI_Win_unlock(TARGET, w.win);
                t = now_ns() - t0;
            } else if (kinds[k].epoch == LOCK_ABSENT) {
                sleep_ms(2000); /* the target stays away from MPI */
            }
            MPI_Barrier(MPI_COMM_WORLD);
            grow = proc_status("VmHWM:") - base;
            grow = grow > 0 ? grow : 0;
            MPI_Gather(&grow, 1, MPI_DOUBLE, peak, 1, MPI_DOUBLE, ORIGIN, MPI_COMM_WORLD);
            if (me == ORIGIN) {
                char name[96];
                struct row r = {.test = name, .bytes = 8, .iters = 1, .ops = n};
                r.unit = "us";
                snprintf(name, sizeof name, "%s/%s/total_time", kinds[k].name, flavour_name[f]);
                emit1(r, t / 1e3);
                snprintf(name, sizeof name, "%s/%s/issue_time", kinds[k].name, flavour_name[f]);
                emit1(r, issue / 1e3);
                r.unit = "B";
                snprintf(name, sizeof name, "%s/%s/origin_peak", kinds[k].name, flavour_name[f]);
                emit1(r, peak[0]);
                snprintf(name, sizeof name, "%s/%s/target_peak", kinds[k].name, flavour_name[f]);
                emit1(r, peak[1]);
            }
            int stop = me == ORIGIN &&
                       (t > opt.mem_limit_s * 1e9 / 4 || peak[0] > 1.2e9 || peak[1] > 1.2e9);
            MPI_Bcast(&stop, 1, MPI_INT, ORIGIN, MPI_COMM_WORLD);
            if (stop)
                break; /* the next step would be four times as long or as large */
        }
        win_close(&w);
        free(buf);
    }
}

/* -- out: the same of one kind in a window of 1024 words; requests are kept to the end */

enum out_kind { OUT_PUT, OUT_ACC, OUT_RPUT, OUT_RGET };

static void out_issue(struct win *w, int64_t *buf, MPI_Request *kept, long n, enum out_kind kind)
{
    struct xfer x = {w, (char *)buf, 8, 1, kind == OUT_RGET};
    MPI_Aint mask = (MPI_Aint)w->size - 1;
    for (long i = 0; i < n; i++) {
        MPI_Aint at = i * 8 & mask;
        if (kind == OUT_PUT)
            transfer(&x, TARGET, at);
        else if (kind == OUT_ACC)
            MPI_Accumulate(buf, 1, MPI_INT64_T, TARGET, w->disp + at, 1, MPI_INT64_T, MPI_SUM,
                           w->win);
        else
            request(&x, (char *)(buf + i), at, &kept[i]); /* each has a buffer of its own */
    }
    if (kind == OUT_RPUT || kind == OUT_RGET)
        MPI_Waitall((int)n, kept, MPI_STATUSES_IGNORE);
    MPI_Win_flush(TARGET, w->win);
}

static void outstanding(enum flavour f, const char *name, enum out_kind kind)
{
    static const long counts[] = {1, 1000, 100000, 1000000};
    struct win w = win_open(f, 8 * KIB);
    bool kept = kind == OUT_RPUT || kind == OUT_RGET;
    double base = 0;
    win_touch(&w);
    for (size_t c = 0; c <= LEN(counts); c++) { /* the first round sets up */
        long n = counts[c ? c - 1 : 0];
        double grown, all[2];
        reset_peak_rss();
        MPI_Barrier(MPI_COMM_WORLD);
        if (me == ORIGIN) {
            int64_t *buf = malloc(8 * (kept ? (size_t)n : 1024));
            MPI_Request *q = malloc(sizeof *q * (kept ? (size_t)n : 1));
            if (!buf || !q)
                die("out of memory");
            memset(buf, 0, 8 * (kept ? (size_t)n : 1024));
            MPI_Win_lock_all(0, w.win);
            out_issue(&w, buf, q, n, kind);
            MPI_Win_unlock_all(w.win);
            free(q);
            free(buf);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (c == 0) {
            base = proc_status("VmRSS:");
            continue;
        }
        grown = proc_status("VmHWM:") - base;
        grown = grown > 0 ? grown : 0;
        MPI_Gather(&grown, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, ORIGIN, MPI_COMM_WORLD);
        for (int who = 0; me == ORIGIN && who < 2; who++) {
            char test[96];
            snprintf(test, sizeof test, "%s_%s/%s", name, who ? "target" : "origin",
                     flavour_name[f]);
            emit1((struct row){.test = test, .unit = "B", .ops = n}, all[who]);
        }
    }
    win_close(&w);
}

/* Each in a job of its own: some end it. */
static void group_out_put(enum flavour f) { outstanding(f, "out_put", OUT_PUT); }
static void group_out_acc(enum flavour f) { outstanding(f, "out_acc", OUT_ACC); }
static void group_out_rput(enum flavour f) { outstanding(f, "out_rput", OUT_RPUT); }
static void group_out_rget(enum flavour f) { outstanding(f, "out_rget", OUT_RGET); }

/* -------------------------- wincost: windows over 2 and more ranks */

static double reduce_max(double v)
{
    double out = 0;
    MPI_Reduce(&v, &out, 1, MPI_DOUBLE, MPI_MAX, ORIGIN, MPI_COMM_WORLD);
    return out;
}

static void group_wincost(enum flavour f)
{
    enum { MAX_WINDOWS = 256 };
    /* ranks spin while they wait: more of them than processors take long */
    int windows = np <= 2 ? 256 : np <= 4 ? 64 : np <= 16 ? 16 : 4;
    int cycles = np <= 2 ? 200 : np <= 4 ? 40 : np <= 16 ? 8 : 2;
    struct win w[MAX_WINDOWS];
    double create[MAX_WINDOWS], destroy[MAX_WINDOWS];
    struct row r = {.ops = np, .iters = windows};

    double init = reduce_max(proc_status("VmRSS:"));
    w[0] = win_open(f, 4 * KIB); /* pays for what is set up once */
    win_touch(&w[0]);
    win_close(&w[0]);
    MPI_Barrier(MPI_COMM_WORLD);
    double rss = proc_status("VmRSS:"), anon = proc_status("RssAnon:"), shared = machine_shmem();
    for (int i = 0; i < windows; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double t = now_ns();
        w[i] = win_open(f, 4 * KIB);
        create[i] = reduce_max(now_ns() - t) / 1e3;
    }
    rss = reduce_max((proc_status("VmRSS:") - rss) / windows);
    anon = reduce_max((proc_status("RssAnon:") - anon) / windows);
    MPI_Barrier(MPI_COMM_WORLD);
    double kept = anon + reduce_max((machine_shmem() - shared) / windows / np);
    if (me == ORIGIN) {
        r.unit = "B";
        r.test = label("rss_before_windows", f), emit1(r, init);
        r.test = label("rss_per_window", f), emit1(r, rss);
        r.test = label("anon_per_window", f), emit1(r, anon);
        r.test = label("kept_per_window", f), emit1(r, kept);
    }
    for (int i = 0; i < windows; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double t = now_ns();
        win_close(&w[i]);
        destroy[i] = reduce_max(now_ns() - t) / 1e3;
    }
    double left = proc_status("VmRSS:");
    double t0 = now_ns();
    for (int i = 0; i < cycles; i++) {
        w[0] = win_open(f, 4 * KIB);
        win_close(&w[0]);
    }
    double cycle_us = reduce_max(now_ns() - t0) / 1e3 / cycles;
    double leak = reduce_max((proc_status("VmRSS:") - left) / cycles);
    if (me == ORIGIN) {
        r.unit = "B";
        r.test = label("leak_per_window_cycle", f), emit1(r, leak);
        r.unit = "us";
        r.test = label("win_create_cost", f), emit(r, create, windows);
        r.test = label("win_free_cost", f), emit(r, destroy, windows);
        r.iters = cycles;
        r.test = label("win_cycle_cost", f), emit1(r, cycle_us);
    }
}

/* -------------------------------------------- limit: the machine, without MPI */

struct copy {
    char *dst, *src;
    long bytes, slots, block, stride;
    pid_t pid;
    int fd;
};

static void op_memcpy(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < x->slots; j++) {
            memcpy(x->dst + j * x->bytes, x->src + j * x->bytes, (size_t)x->bytes);
            __asm__ volatile("" ::: "memory");
        }
}

#if defined(__x86_64__)
static void copy_stream(char *dst, const char *src, long bytes)
{
    for (long i = 0; i < bytes; i += 64) {
        __m128i a = _mm_load_si128((const __m128i *)(src + i));
        __m128i b = _mm_load_si128((const __m128i *)(src + i + 16));
        __m128i d = _mm_load_si128((const __m128i *)(src + i + 32));
        __m128i e = _mm_load_si128((const __m128i *)(src + i + 48));
        _mm_stream_si128((__m128i *)(dst + i), a);
        _mm_stream_si128((__m128i *)(dst + i + 16), b);
        _mm_stream_si128((__m128i *)(dst + i + 32), d);
        _mm_stream_si128((__m128i *)(dst + i + 48), e);
    }
    _mm_sfence();
}

static void op_memcpy_nt(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < x->slots; j++)
            copy_stream(x->dst + j * x->bytes, x->src + j * x->bytes, x->bytes);
}

static void op_rep_movsb(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < x->slots; j++) {
            void *d = x->dst + j * x->bytes;
            const void *s = x->src + j * x->bytes;
            size_t len = (size_t)x->bytes;
            __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(len)::"memory");
        }
}
#endif

static void op_copy_strided(void *c, long n)
{
    struct copy *x = c;
    long blocks = x->bytes / x->block;
    for (long i = 0; i < n; i++) {
        if (x->block == 8)
            for (long b = 0; b < blocks; b++)
                memcpy(x->dst + b * 16, x->src + b * 16, 8);
        else
            for (long b = 0; b < blocks; b++)
                x->dst[b * 2] = x->src[b * 2];
        __asm__ volatile("" ::: "memory");
    }
}

static void op_sum_i64(void *c, long n)
{
    struct copy *x = c;
    int64_t *d = (int64_t *)x->dst, *s = (int64_t *)x->src;
    for (long i = 0; i < n; i++) {
        for (long j = 0; j < x->bytes / 8; j++)
            d[j] += s[j];
        __asm__ volatile("" ::: "memory");
    }
}

static void op_sum_f64(void *c, long n)
{
    struct copy *x = c;
    double *d = (double *)x->dst, *s = (double *)x->src;
    for (long i = 0; i < n; i++) {
        for (long j = 0; j < x->bytes / 8; j++)
            d[j] += s[j];
        __asm__ volatile("" ::: "memory");
    }
}

static void op_atomic_sum_i64(void *c, long n)
{
    struct copy *x = c;
    _Atomic int64_t *d = (_Atomic int64_t *)x->dst;
    int64_t *s = (int64_t *)x->src;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < x->bytes / 8; j++)
            atomic_fetch_add_explicit(&d[j], s[j], memory_order_relaxed);
}

static void op_atomic_sum_f64(void *c, long n)
{
    struct copy *x = c;
    _Atomic uint64_t *d = (_Atomic uint64_t *)x->dst;
    double *s = (double *)x->src;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < x->bytes / 8; j++) {
            uint64_t old = atomic_load_explicit(&d[j], memory_order_relaxed), want;
            do {
                double v;
                memcpy(&v, &old, 8);
                v += s[j];
                memcpy(&want, &v, 8);
            } while (!atomic_compare_exchange_weak_explicit(&d[j], &old, want, memory_order_acq_rel,
                                                            memory_order_relaxed));
        }
}

static void op_fetch_add(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++)
        atomic_fetch_add((_Atomic int64_t *)x->dst, 1);
}

static void op_cas_shm(void *c, long n)
{
    struct copy *x = c;
    int64_t v = atomic_load((_Atomic int64_t *)x->dst);
    for (long i = 0; i < n; i++) {
        if (!atomic_compare_exchange_strong((_Atomic int64_t *)x->dst, &v, v + 1))
            die("cas lost");
        v++;
    }
}

static void op_mfence(void *c, long n)
{
    (void)c;
    for (long i = 0; i < n; i++)
        atomic_thread_fence(memory_order_seq_cst);
}

static void op_clock(void *c, long n)
{
    (void)c;
    volatile double sink;
    for (long i = 0; i < n; i++)
        sink = now_ns();
    (void)sink;
}

static void op_lock_unlock(void *c, long n)
{
    struct copy *x = c;
    _Atomic int *l = (_Atomic int *)x->dst;
    for (long i = 0; i < n; i++) {
        int zero = 0;
        while (!atomic_compare_exchange_weak_explicit(l, &zero, 1, memory_order_acquire,
                                                      memory_order_relaxed))
            zero = 0;
        atomic_store_explicit(l, 0, memory_order_release);
    }
}

/* Two flags in shared memory, each in its own cache line. */
static void op_pingpong(void *c, long n)
{
    struct copy *x = c;
    _Atomic int64_t *ping = (_Atomic int64_t *)x->dst, *pong = (_Atomic int64_t *)(x->dst + 512);
    int64_t v = atomic_load_explicit(ping, memory_order_relaxed);
    for (long i = 0; i < n; i++) {
        atomic_store_explicit(ping, ++v, memory_order_release);
        while (atomic_load_explicit(pong, memory_order_acquire) != v)
            ;
    }
}

static void pong_main(char *mem)
{
    _Atomic int64_t *ping = (_Atomic int64_t *)mem, *pong = (_Atomic int64_t *)(mem + 512);
    for (;;) {
        int64_t v = atomic_load_explicit(ping, memory_order_acquire);
        atomic_store_explicit(pong, v, memory_order_release);
    }
}

static void hammer_main(char *mem)
{
    for (;;)
        atomic_fetch_add((_Atomic int64_t *)mem, 1);
}

static void idle_main(char *mem)
{
    (void)mem;
    for (;;)
        pause();
}

static pid_t child(void (*fn)(char *), char *mem)
{
    pid_t p = fork();
    if (p < 0)
        die("fork: %s", strerror(errno));
    if (p == 0) {
        pin_to(1);
        fn(mem);
        _exit(0);
    }
    return p;
}

static void reap(pid_t p)
{
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
}

static void op_cma_write(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++) {
        struct iovec l = {x->src, (size_t)x->bytes}, r = {x->dst, (size_t)x->bytes};
        if (process_vm_writev(x->pid, &l, 1, &r, 1, 0) != x->bytes)
            die("process_vm_writev: %s", strerror(errno));
    }
}

static void op_cma_read(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++) {
        struct iovec l = {x->src, (size_t)x->bytes}, r = {x->dst, (size_t)x->bytes};
        if (process_vm_readv(x->pid, &l, 1, &r, 1, 0) != x->bytes)
            die("process_vm_readv: %s", strerror(errno));
    }
}

static bool tcp_spin; /* poll the socket instead of sleeping in the kernel */

static void tcp_all(int fd, char *p, long n, bool out)
{
    while (n > 0) {
        int flags = tcp_spin ? MSG_DONTWAIT : 0;
        ssize_t k = out ? send(fd, p, (size_t)n, flags) : recv(fd, p, (size_t)n, flags);
        if (k == 0)
            _exit(0);
        if (k < 0) {
            if (errno == EAGAIN || errno == EINTR)
                continue;
            _exit(1);
        }
        p += k;
        n -= k;
    }
}

/* A message is a 16-byte header {inbound bytes, reply bytes} and its data. */
static void tcp_server(int fd, char *mem)
{
    int64_t h[2];
    for (;;) {
        tcp_all(fd, (char *)h, sizeof h, false);
        tcp_all(fd, mem, h[0], false);
        tcp_all(fd, mem, h[1], true);
    }
}

static void op_tcp_put(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++) {
        int64_t h[2] = {x->bytes, 8}, ack;
        if (x->bytes <= 4 * KIB) { /* one segment for header and data */
            char msg[16 + 4 * KIB];
            memcpy(msg, h, 16);
            memcpy(msg + 16, x->src, (size_t)x->bytes);
            tcp_all(x->fd, msg, 16 + x->bytes, true);
        } else {
            tcp_all(x->fd, (char *)h, sizeof h, true);
            tcp_all(x->fd, x->src, x->bytes, true);
        }
        tcp_all(x->fd, (char *)&ack, 8, false);
    }
}

static void op_tcp_get(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++) {
        int64_t h[2] = {0, x->bytes};
        tcp_all(x->fd, (char *)h, sizeof h, true);
        tcp_all(x->fd, x->src, x->bytes, false);
    }
}

/* slots messages, of which only the last is acknowledged */
static void op_tcp_put_window(void *c, long n)
{
    struct copy *x = c;
    for (long i = 0; i < n; i++) {
        int64_t h[2] = {x->bytes * x->slots, 8}, ack;
        tcp_all(x->fd, (char *)h, sizeof h, true);
        tcp_all(x->fd, x->src, x->bytes * x->slots, true);
        tcp_all(x->fd, (char *)&ack, 8, false);
    }
}

static void limit_tcp(char *buf)
{
    for (int spin = 0; spin < 2; spin++) {
        tcp_spin = spin;
        int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof a;
        if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1) ||
            getsockname(l, (struct sockaddr *)&a, &len))
            die("tcp: %s", strerror(errno));
        pid_t p = fork();
        if (p == 0) {
            pin_to(1);
            int s = accept(l, NULL, NULL);
            setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            tcp_server(s, buf);
        }
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a))
            die("connect: %s", strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        opt.transport = spin ? "tcp-poll" : "tcp-block";
        for (size_t s = 0; s < LEN(lat_sizes); s++) {
            struct copy x = {.src = buf, .bytes = lat_sizes[s], .slots = 1, .fd = fd};
            struct row r = {.bytes = x.bytes, .unit = "us"};
            r.test = "tcp_put_ack", bench(r, op_tcp_put, &x, NO_MPI, 1, 0);
            r.test = "tcp_get", bench(r, op_tcp_get, &x, NO_MPI, 1, 0);
            x.slots = 64 * MIB / x.bytes < WINDOW ? 64 * MIB / x.bytes : WINDOW;
            r.unit = "MB/s";
            r.test = "tcp_put_bw", bench(r, op_tcp_put_window, &x, NO_MPI, x.slots, 0);
        }
        close(fd);
        close(l);
        reap(p);
    }
}

static void limit_strided(struct copy x)
{
    static const long totals[] = {1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB};
    for (size_t t = 0; t < LEN(totals); t++) {
        struct row r = {.bytes = totals[t], .unit = "us"};
        x.bytes = totals[t];
        x.block = 1;
        r.test = "copy_vec1s2", bench(r, op_copy_strided, &x, NO_MPI, 1, 0);
        x.block = 8;
        r.test = "copy_vec8s16", bench(r, op_copy_strided, &x, NO_MPI, 1, 0);
    }
}

static void map_page(void)
{
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        die("mmap: %s", strerror(errno));
}

static void group_limit(void)
{
    const long area = 64 * MIB;
    static const long counts[] = {1, 1024, 131072};
    np = 1;
    me = ORIGIN;
    pin_to(0);
    char *seg[2];
    for (int i = 0; i < 2; i++) {
        seg[i] = mmap(NULL, (size_t)area, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (seg[i] == MAP_FAILED)
            die("mmap: %s", strerror(errno));
        memset(seg[i], i, (size_t)area);
    }
    char *own = page_alloc((size_t)area);
    map_page();
    struct copy x = {.dst = seg[1], .src = seg[0], .slots = 1};
    opt.transport = "shm";

    for (size_t s = 0; s < LEN(lat_sizes); s++) {
        struct row r = {.bytes = lat_sizes[s], .unit = "us"};
        x.bytes = lat_sizes[s];
        x.slots = 1;
        r.test = "memcpy", bench(r, op_memcpy, &x, NO_MPI, 1, 0);
        x.src = own;
        r.test = "memcpy_private_to_shared", bench(r, op_memcpy, &x, NO_MPI, 1, 0);
        x.src = seg[0];
#if defined(__x86_64__)
        if (x.bytes >= 4 * KIB) {
            r.test = "memcpy_nt", bench(r, op_memcpy_nt, &x, NO_MPI, 1, 0);
            r.test = "rep_movsb", bench(r, op_rep_movsb, &x, NO_MPI, 1, 0);
        }
#endif
        x.slots = area / x.bytes < WINDOW ? area / x.bytes : WINDOW;
        r.unit = "MB/s";
        r.ops = x.slots;
        r.test = "memcpy_bw", bench(r, op_memcpy, &x, NO_MPI, x.slots, 0);
#if defined(__x86_64__)
        if (x.bytes >= 4 * KIB)
            r.test = "memcpy_nt_bw", bench(r, op_memcpy_nt, &x, NO_MPI, x.slots, 0);
#endif
    }
    x.slots = RATE_OPS;
    x.bytes = 8;
    bench((struct row){.test = "store_rate", .bytes = 8, .unit = "op/s", .ops = RATE_OPS},
          op_memcpy, &x, NO_MPI, RATE_OPS, 0);
    limit_strided(x);
    for (size_t s = 0; s < LEN(counts); s++) {
        struct row r = {.bytes = 8 * counts[s], .unit = "us"};
        x.bytes = r.bytes;
        memset(seg[0], 0, 1 * MIB); /* integer and floating zero */
        memset(seg[1], 0, 1 * MIB);
        r.test = "sum_i64", bench(r, op_sum_i64, &x, NO_MPI, 1, 0);
        r.test = "sum_f64", bench(r, op_sum_f64, &x, NO_MPI, 1, 0);
        r.test = "atomic_sum_i64", bench(r, op_atomic_sum_i64, &x, NO_MPI, 1, 0);
        r.test = "atomic_sum_f64", bench(r, op_atomic_sum_f64, &x, NO_MPI, 1, 0);
    }
    struct row r = {.bytes = 8, .unit = "us"};
    r.test = "fetch_add", bench(r, op_fetch_add, &x, NO_MPI, 1, 0);
    r.test = "cas", bench(r, op_cas_shm, &x, NO_MPI, 1, 0);
    r.test = "full_fence", bench(r, op_mfence, &x, NO_MPI, 1, 0);
    r.test = "clock_gettime", bench(r, op_clock, &x, NO_MPI, 1, 0);
    memset(seg[1], 0, 4096);
    r.test = "spinlock_pair", bench(r, op_lock_unlock, &x, NO_MPI, 1, 0);

    memset(seg[1], 0, 4096);
    pid_t p = child(pong_main, seg[1]);
    r.test = "flag_round_trip", bench(r, op_pingpong, &x, NO_MPI, 1, 0);
    reap(p);
    p = child(hammer_main, seg[1]);
    r.test = "fetch_add_contended2", bench(r, op_fetch_add, &x, NO_MPI, 1, 0);
    reap(p);

    opt.transport = "cma";
    p = child(idle_main, NULL);
    for (size_t s = 0; s < LEN(lat_sizes); s++) {
        struct copy y = {.src = seg[0], .dst = own, .bytes = lat_sizes[s], .pid = p};
        r.bytes = y.bytes;
        r.test = "process_vm_writev", bench(r, op_cma_write, &y, NO_MPI, 1, 0);
        r.test = "process_vm_readv", bench(r, op_cma_read, &y, NO_MPI, 1, 0);
    }
    reap(p);
    limit_tcp(own);
}

/* -------------------------------------------------------------------- main */

static const struct {
    const char *name;
    void (*fn)(enum flavour);
} groups[] = {
    {"lat", group_lat},           {"rate", group_rate},       {"both", group_both},
    {"pairs", group_pairs},       {"req", group_req},         {"overlap", group_overlap},
    {"out_put", group_out_put},   {"out_acc", group_out_acc}, {"out_rput", group_out_rput},
    {"out_rget", group_out_rget},
    {"atomic", group_atomic},     {"cas", group_cas},         {"nc", group_nc},
    {"sync", group_sync},         {"coll", group_coll},       {"many", group_many},
    {"hacc", group_hacc},
    {"progress", group_progress}, {"mt", group_mt},           {"contend", group_contend},
    {"mem", group_mem},           {"wincost", group_wincost}, {"visible", group_visible},
    {"stopped", group_stopped},
};

static void usage(void)
{
    die("usage: peerbench [--impl S] [--transport S] [--flavours a,b] [--info k=v,..] [--rep N]\n"
        "  [--batches N] [--batch-ms X] [--budget-ms X] [--max-bytes N] [--max-outstanding N]\n"
        "  [--only SUBSTRING (of a mem or progress test)] [--no-pin] GROUP...\n"
        "  GROUP: lat rate both pairs req overlap atomic cas nc sync many hacc progress visible mt\n"
        "  contend mem out_put out_acc out_rput out_rget wincost stopped limit hop version empty");
}

static bool listed(const char *list, const char *item)
{
    size_t n = strlen(item);
    for (const char *p = list; (p = strstr(p, item)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

static int parse(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *key = argv[i];
        if (strcmp(key, "--no-pin") == 0) {
            opt.pin = 0;
            continue;
        }
        const char *val = ++i < argc ? argv[i] : NULL;
        if (!val)
            usage();
        if (strcmp(key, "--impl") == 0)
            opt.impl = val;
        else if (strcmp(key, "--transport") == 0)
            opt.transport = val;
        else if (strcmp(key, "--flavours") == 0)
            opt.flavours = val;
        else if (strcmp(key, "--info") == 0)
            opt.info = val;
        else if (strcmp(key, "--only") == 0)
            opt.only = val;
        else if (strcmp(key, "--rep") == 0)
            opt.rep = atoi(val);
        else if (strcmp(key, "--batches") == 0)
            opt.batches = atoi(val) > 101 ? 101 : atoi(val);
        else if (strcmp(key, "--batch-ms") == 0)
            opt.batch_ns = atof(val) * 1e6;
        else if (strcmp(key, "--budget-ms") == 0)
            opt.budget_ns = atof(val) * 1e6;
        else if (strcmp(key, "--max-bytes") == 0)
            opt.max_bytes = atol(val);
        else if (strcmp(key, "--max-outstanding") == 0)
            opt.max_outstanding = atol(val);
        else
            usage();
    }
    if (i == argc)
        usage();
    return i;
}

int main(int argc, char **argv)
{
    int first = parse(argc, argv), provided;
    program = argv[0];
    if (strcmp(argv[first], "limit") == 0) {
        opt.impl = "limit";
        group_limit();
        return 0;
    }
    if (strcmp(argv[first], "hop") == 0) {
        pin_to(0);
        map_page();
        measure_hop_child();
        printf("%.0f\n", hop_ns);
        return 0;
    }
    if (strcmp(argv[first], "version") == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length); /* allowed before MPI_Init */
        puts(version);
        return 0;
    }
    if (strcmp(argv[first], "empty") == 0) {
        MPI_Init(&argc, &argv);
        MPI_Finalize();
        return 0;
    }
    bool threads = strcmp(argv[first], "mt") == 0;
    MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (np < 2)
        die("needs 2 ranks or more");
    pin_to(me);
    share_page();
    for (int i = first; i < argc; i++) {
        size_t g = 0;
        while (g < LEN(groups) && strcmp(groups[g].name, argv[i]) != 0)
            g++;
        if (g == LEN(groups))
            usage();
        if (groups[g].fn == group_mt && provided < MPI_THREAD_MULTIPLE) {
            if (me == ORIGIN)
                emit_fault("mt_put_flush", 8, "no MPI_THREAD_MULTIPLE");
            continue;
        }
        for (int f = ALLOC; f <= SHARED; f++)
            if (listed(opt.flavours, flavour_name[f]))
                groups[g].fn((enum flavour)f);
    }
    double v[2], share, most;
    sched_times(&v[0], &v[1]);
    share = v[0] > 0 ? v[1] / (v[0] + v[1]) : 0;
    MPI_Reduce(&share, &most, 1, MPI_DOUBLE, MPI_MAX, ORIGIN, MPI_COMM_WORLD);
    if (me == ORIGIN)
        emit1((struct row){.test = "launch_waited", .unit = "share"}, most);
    MPI_Finalize();
    return 0;
}
