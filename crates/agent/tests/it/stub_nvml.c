/* A stub of the NVML library, which reports the state of GPUs that a scenario file describes. The file has a line per
 * GPU, such as `gpu=0 util=50 power=250000 …`. The line `driver=0` stands for a driver that does not answer. The file is
 * read again when it changes, so that a test can make a GPU busy, blank, lost or faulty while the agent runs. The stub
 * contains only the functions that the agent calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define GPUS 16
#define INSTANCES 8
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };

typedef struct {
    int index, instance, lost, blank, gpm, mig, xid, xid_told, is_there, pid;
    unsigned remap_uncorrected, remap_pending, nvlink_replay;
    unsigned util, power, temp, sm, mem_clock, replay;
    unsigned long long energy, used, total, ecc, throttle;
    double sm_active, sm_occupancy, tensor, dram;
} device;

typedef struct { device *of; double sm_active, sm_occupancy, tensor, dram, util; } sample;

static device devices[GPUS], instances[GPUS][INSTANCES];
static int count, is_up = 1;
static struct stat known;

static unsigned long long field(const char *line, const char *name, unsigned long long otherwise) {
    char key[32];
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(line, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : otherwise;
}

static double share(const char *line, const char *name) {
    char key[32];
    snprintf(key, sizeof key, " %s=", name);
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

static void look(void) {
    const char *path = getenv("ROWMILL_STUB_NVML");
    struct stat found;
    if (!path || stat(path, &found)) return;
    /* Two files that are written within one clock tick have the same time, but different inodes. */
    if (found.st_ino == known.st_ino && found.st_mtim.tv_sec == known.st_mtim.tv_sec &&
        found.st_mtim.tv_nsec == known.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    known = found;
    char line[1024];
    count = 0;
    is_up = 1;
    for (int at = 0; at < GPUS; at++) devices[at].is_there = 0;
    while (count < GPUS && fgets(line + 1, sizeof line - 1, file)) {
        line[0] = ' ';
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, " driver=0")) {
            is_up = 0;
            continue;
        }
        device *d = &devices[count];
        int xid = (int)field(line, "xid", 0);
        if (xid != d->xid) d->xid_told = 0;
        d->index = count;
        d->instance = -1;
        d->is_there = 1;
        d->xid = xid;
        d->lost = (int)field(line, "lost", 0);
        d->blank = (int)field(line, "blank", 0);
        d->gpm = (int)field(line, "gpm", 0);
        d->pid = (int)field(line, "pid", 0);
        d->remap_uncorrected = (unsigned)field(line, "remap", 0);
        d->remap_pending = (unsigned)field(line, "remappending", 0);
        d->nvlink_replay = (unsigned)field(line, "nvlinkreplay", 0);
        d->mig = (int)field(line, "mig", 0);
        d->util = (unsigned)field(line, "util", 0);
        d->power = (unsigned)field(line, "power", 50000);
        d->temp = (unsigned)field(line, "temp", 40);
        d->sm = (unsigned)field(line, "sm", 1410);
        d->mem_clock = (unsigned)field(line, "memclock", 1593);
        d->replay = (unsigned)field(line, "replay", 0);
        d->energy = field(line, "energy", 0);
        d->used = field(line, "used", 1ULL << 30);
        d->total = field(line, "total", 80ULL << 30);
        d->ecc = field(line, "ecc", 0);
        d->throttle = field(line, "throttle", 0);
        d->sm_active = share(line, "smactive");
        d->sm_occupancy = share(line, "smoccupancy");
        d->tensor = share(line, "tensor");
        d->dram = share(line, "dram");
        for (int part = 0; part < INSTANCES; part++) {
            instances[count][part] = *d;
            instances[count][part].instance = part;
            instances[count][part].is_there = part < d->mig;
            if (part != (int)field(line, "part", 0)) instances[count][part].pid = 0;
        }
        count++;
    }
    fclose(file);
}

#define ALIVE(d) do { \
    look(); \
    if (!is_up) return UNINITIALIZED; \
    if ((d)->lost || !(d)->is_there) return LOST; \
} while (0)

int nvmlInit_v2(void) { look(); return is_up ? OK : NO_DRIVER; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stub"; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    snprintf(out, length, "570.1");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *out) {
    look();
    if (!is_up) return UNINITIALIZED;
    *out = (unsigned)count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    if (index >= (unsigned)count) return INVALID;
    *out = &devices[index];
    return OK;
}

int nvmlDeviceGetUUID(device *d, char *out, unsigned length) {
    if (d->instance < 0) snprintf(out, length, "GPU-%08d-0000-0000-0000-000000000000", d->index);
    else snprintf(out, length, "MIG-%08d-0000-0000-0000-%012d", d->index, d->instance);
    return OK;
}

int nvmlDeviceGetName(device *d, char *out, unsigned length) {
    snprintf(out, length, d->instance < 0 ? "Stub H100" : "Stub H100 MIG 1g.10gb");
    return OK;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = (unsigned)d->index + 1;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
int nvmlDeviceGetMemoryInfo_v2(device *d, memory *out) {
    ALIVE(d);
    out->total = d->total;
    out->used = d->used;
    out->reserved = 0;
    out->free = d->total - d->used;
    return OK;
}

typedef struct { unsigned gpu, memory; } rates;
int nvmlDeviceGetUtilizationRates(device *d, rates *out) {
    ALIVE(d);
    if (d->mig || d->instance >= 0) return NOT_SUPPORTED;
    out->gpu = d->blank ? 0xFFFFFFFFu : d->util;
    out->memory = 0;
    return OK;
}

int nvmlDeviceGetPowerUsage(device *d, unsigned *out) { ALIVE(d); *out = d->power; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *out) {
    ALIVE(d);
    *out = d->energy;
    return OK;
}
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    (void)sensor;
    ALIVE(d);
    *out = d->temp;
    return OK;
}
int nvmlDeviceGetClockInfo(device *d, int which, unsigned *out) {
    ALIVE(d);
    *out = which == 2 ? d->mem_clock : d->sm;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *out) {
    ALIVE(d);
    *out = d->throttle;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *out) {
    (void)counter;
    ALIVE(d);
    *out = kind == 1 ? d->ecc : 0;
    return OK;
}
int nvmlDeviceGetPcieReplayCounter(device *d, unsigned *out) { ALIVE(d); *out = d->replay; return OK; }

/* At most one process, whose id is `pid=…`, computes on a GPU or on its instance `part`. */
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *out) {
    ALIVE(d);
    unsigned room = *count;
    *count = d->pid > 0;
    if (room < *count) return INSUFFICIENT_SIZE;
    unsigned number = d->instance < 0 ? 0xFFFFFFFFu : (unsigned)d->instance + 3;
    if (d->pid > 0) out[0] = (process){(unsigned)d->pid, 0, number, number};
    return OK;
}

int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    *current = *pending = d->mig > 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) {
    *out = d->mig ? INSTANCES : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned part, device **out) {
    if (part >= INSTANCES || !instances[d->index][part].is_there) return NOT_FOUND;
    *out = &instances[d->index][part];
    return OK;
}

typedef struct { unsigned version, is_supported; } support;
int nvmlGpmQueryDeviceSupport(device *d, support *out) { out->is_supported = (unsigned)d->gpm; return OK; }
int nvmlGpmSampleAlloc(sample **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleFree(sample *s) { free(s); return OK; }
int nvmlGpmSampleGet(device *d, sample *s) {
    ALIVE(d);
    *s = (sample){d, d->sm_active, d->sm_occupancy, d->tensor, d->dram, d->util};
    return OK;
}

/* The id of a GPU instance is its index plus 3. */
int nvmlGpmMigSampleGet(device *d, unsigned number, sample *s) {
    ALIVE(d);
    if (number < 3 || !instances[d->index][number - 3].is_there) return INVALID;
    *s = (sample){d, d->sm_active, d->sm_occupancy, d->tensor, d->dram, d->util};
    return OK;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    unsigned long long value;
} field_value;
int nvmlDeviceGetFieldValues(device *d, int count, field_value *values) {
    ALIVE(d);
    for (int at = 0; at < count; at++) {
        field_value *x = &values[at];
        x->code = OK;
        x->type = x->id < 100 ? 3 : 1;
        switch (x->id) {
        case 52: x->value = d->nvlink_replay; break;
        case 143: x->value = d->remap_uncorrected; break;
        case 144: x->value = d->remap_pending; break;
        default: x->value = 0;
        }
    }
    return OK;
}

typedef struct { unsigned id; int code; double value; const char *a, *b, *c; } metric;
typedef struct { unsigned version, count; sample *one, *other; metric metrics[210]; } metrics;
int nvmlGpmMetricsGet(metrics *m) {
    for (unsigned at = 0; at < m->count; at++) {
        metric *x = &m->metrics[at];
        x->code = OK;
        x->a = x->b = x->c = "stub";
        switch (x->id) {
        case 1: x->value = m->other->util; break;
        case 2: x->value = m->other->sm_active * 100; break;
        case 3: x->value = m->other->sm_occupancy * 100; break;
        case 5: x->value = m->other->tensor * 100; break;
        case 10: x->value = m->other->dram * 100; break;
        case 20: x->value = 100; break;
        case 21: x->value = 50; break;
        default: x->value = 0;
        }
    }
    return OK;
}

int nvmlEventSetCreate(void **out) { *out = devices; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) {
    (void)d; (void)types; (void)set;
    return OK;
}
typedef struct { device *of; unsigned long long type, data; unsigned gpu, compute; } event;
int nvmlEventSetWait_v2(void *set, event *out, unsigned timeout) {
    (void)set; (void)timeout;
    look();
    for (int at = 0; at < count; at++) {
        device *d = &devices[at];
        if (d->xid && !d->xid_told) {
            d->xid_told = 1;
            *out = (event){d, 8, (unsigned long long)d->xid, 0, 0};
            return OK;
        }
    }
    return TIMEOUT;
}
