/* A library of NVML's name and signatures whose answers come from a text file, named by FAKE_NVML.
 *
 * It is loaded by the real nvidia-ml-py, so what is tested is the whole path down to the C calls. The file is read anew
 * at every call that starts a look (driver version), so a test changes the cards at run time. Its lines:
 *
 *   driver 570.86.15            the driver's version
 *   init 9                      nvmlInitWithFlags fails with this code
 *   hang nvmlDeviceGetMemoryInfo_v2    this call sleeps for ever
 *   die nvmlDeviceGetCount_v2   this call ends the process
 *   error CALL CODE             this call fails, if it is about no card
 *   xid 3 79                    an event on the card at place 3; each such line is told once
 *   card                        begins a card; what follows belongs to it
 *     uuid, name, bus, total, used, reserved (MiB), ecc, pending, failure, retired, recovery, mig, fabric, lost,
 *     handle (fails with this code; a card that was lost once stays so until the library is opened anew), error CALL CODE, process PID MIB (-1: not said), link REMOTE_BUS
 *
 * A key that is absent makes its call answer NOT_SUPPORTED, as cards do. -DOLD leaves out what drivers before R510 lack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define LOST 15
#define MAX_CARDS 16
#define MAX_ITEMS 32
#define ABSENT (-1000)

struct card {
  char uuid[96], name[96], bus[32];
  long total, used, reserved, ecc, pending, failure, retired, recovery, mig, fabric, lost, handle;
  int errors; char error_call[MAX_ITEMS][64]; int error_code[MAX_ITEMS];
  int processes; unsigned pid[MAX_ITEMS]; long held[MAX_ITEMS];
  int links; char link[MAX_ITEMS][32];
};

static struct card cards[MAX_CARDS];
static struct card none; /* what calls that are about no card fail with */
static int stays_lost[MAX_CARDS];
static int count, init_code, events_seen, events, event_place[64], event_xid[64];
static char driver[80], hang[64], die[64];

static void load(void) {
  char line[256], key[64], a[128], b[64];
  const char *path = getenv("FAKE_NVML");
  FILE *file = path ? fopen(path, "r") : NULL;
  struct card *card = NULL;
  count = 0; init_code = 0; events = 0; hang[0] = die[0] = 0; none.errors = 0;
  if (!file) return;
  while (fgets(line, sizeof line, file)) {
    a[0] = b[0] = 0;
    if (sscanf(line, " %63s %127s %63s", key, a, b) < 1) continue;
    long n = atol(a);
    if (!strcmp(key, "driver")) strcpy(driver, a);
    else if (!strcmp(key, "init")) init_code = n;
    else if (!strcmp(key, "hang")) strcpy(hang, a);
    else if (!strcmp(key, "die")) strcpy(die, a);
    else if (!strcmp(key, "xid")) { event_place[events] = n; event_xid[events++] = atoi(b); }
    else if (!strcmp(key, "card")) {
      card = &cards[count++];
      memset(card, 0, sizeof *card);
      card->total = card->used = card->reserved = card->ecc = card->pending = card->retired = card->recovery = ABSENT;
      card->mig = card->fabric = ABSENT;
    }
    else if (!card && strcmp(key, "error")) continue;
    else if (!strcmp(key, "uuid")) strcpy(card->uuid, a);
    else if (!strcmp(key, "name")) { sscanf(line, " name %95[^\n]", card->name); }
    else if (!strcmp(key, "bus")) strcpy(card->bus, a);
    else if (!strcmp(key, "total")) card->total = n;
    else if (!strcmp(key, "used")) card->used = n;
    else if (!strcmp(key, "reserved")) card->reserved = n;
    else if (!strcmp(key, "ecc")) card->ecc = n;
    else if (!strcmp(key, "pending")) card->pending = n;
    else if (!strcmp(key, "failure")) card->failure = n;
    else if (!strcmp(key, "retired")) card->retired = n;
    else if (!strcmp(key, "recovery")) card->recovery = n;
    else if (!strcmp(key, "mig")) card->mig = n;
    else if (!strcmp(key, "fabric")) card->fabric = n;
    else if (!strcmp(key, "lost")) card->lost = n;
    else if (!strcmp(key, "handle")) card->handle = n;
    else if (!strcmp(key, "error")) {
      struct card *whose = card ? card : &none;
      strcpy(whose->error_call[whose->errors], a); whose->error_code[whose->errors++] = atoi(b);
    }
    else if (!strcmp(key, "process")) { card->pid[card->processes] = n; card->held[card->processes++] = atol(b); }
    else if (!strcmp(key, "link")) strcpy(card->link[card->links++], a);
  }
  fclose(file);
  for (int i = 0; i < count; i++) {
    if (cards[i].lost || cards[i].handle == LOST) stays_lost[i] = 1;
    if (stays_lost[i]) cards[i].lost = 1;
  }
}

static int begin(const char *call, struct card *card) {
  if (!strcmp(hang, call)) for (;;) sleep(3600);
  if (!strcmp(die, call)) _exit(139);
  if (!card) card = &none;
  if (card->lost) return LOST;
  for (int i = 0; i < card->errors; i++) if (!strcmp(card->error_call[i], call)) return card->error_code[i];
  return SUCCESS;
}
#define BEGIN(card) do { int code = begin(__func__, card); if (code) return code; } while (0)
#define NEED(value) do { if ((value) == ABSENT) return NOT_SUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; memset(stays_lost, 0, sizeof stays_lost); load(); BEGIN(NULL); return init_code; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "error %d", code); return text; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { load(); BEGIN(NULL); snprintf(out, size, "%s", driver); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { BEGIN(NULL); *out = count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned place, void **out) {
  BEGIN(NULL);
  if ((int)place >= count) return INVALID_ARGUMENT;
  *out = &cards[place];
  return cards[place].handle;
}

/* what a library has in its own memory is answered even for a lost card */
int nvmlDeviceGetUUID(struct card *card, char *out, unsigned size) { snprintf(out, size, "%s", card->uuid); return SUCCESS; }
int nvmlDeviceGetName(struct card *card, char *out, unsigned size) { BEGIN(card); snprintf(out, size, "%s", card->name); return SUCCESS; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char full[32]; };
int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *out) {
  memset(out, 0, sizeof *out);
  snprintf(out->full, sizeof out->full, "%s", card->bus);
  return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
#define MIB(n) ((unsigned long long)(n) << 20)
int nvmlDeviceGetMemoryInfo(struct card *card, struct memory *out) {
  BEGIN(card); NEED(card->total);
  long reserved = card->reserved == ABSENT ? 0 : card->reserved;
  out->total = MIB(card->total); out->used = MIB(card->used + reserved); out->free = out->total - out->used;
  return SUCCESS;
}
#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(struct card *card, struct memory2 *out) {
  BEGIN(card); NEED(card->total);
  if (out->version != 0x02000028) return 25;
  long reserved = card->reserved == ABSENT ? 0 : card->reserved;
  out->total = MIB(card->total); out->reserved = MIB(reserved); out->used = MIB(card->used);
  out->free = out->total - out->used - out->reserved;
  return SUCCESS;
}
#endif

struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
static int processes(struct card *card, unsigned *size, struct process *out) {
  if ((int)*size < card->processes) { *size = card->processes; return INSUFFICIENT_SIZE; }
  *size = card->processes;
  for (int i = 0; i < card->processes; i++) {
    out[i].pid = card->pid[i];
    out[i].memory = card->held[i] < 0 ? ~0ULL : MIB(card->held[i]);
    out[i].gi = out[i].ci = ~0u;
  }
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(struct card *card, unsigned *size, struct process *out) { BEGIN(card); return processes(card, size, out); }
#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *size, struct process *out) { BEGIN(card); return processes(card, size, out); }
#endif

int nvmlDeviceGetTotalEccErrors(struct card *card, int kind, int counter, unsigned long long *out) {
  BEGIN(card); NEED(card->ecc);
  if (kind != 1 || counter != 0) return INVALID_ARGUMENT; /* uncorrected, since the driver was loaded */
  *out = card->ecc;
  return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(struct card *card, unsigned *out) { BEGIN(card); NEED(card->retired); *out = card->retired; return SUCCESS; }
int nvmlDeviceGetMigMode(struct card *card, unsigned *now, unsigned *pending) { BEGIN(card); NEED(card->mig); *now = *pending = card->mig; return SUCCESS; }

int nvmlDeviceGetNvLinkState(struct card *card, unsigned link, unsigned *out) {
  BEGIN(card);
  if (!card->links) return NOT_SUPPORTED;
  if ((int)link >= card->links) return INVALID_ARGUMENT;
  *out = strcmp(card->link[link], "down") != 0;
  return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct card *card, unsigned link, struct pci *out) {
  BEGIN(card);
  memset(out, 0, sizeof *out);
  snprintf(out->full, sizeof out->full, "%s", card->link[link]);
  return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetRemappedRows(struct card *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
  BEGIN(card); NEED(card->pending);
  *corrected = *uncorrected = 0; *pending = card->pending; *failure = card->failure;
  return SUCCESS;
}
struct field { unsigned id, scope; long long timestamp, latency; int type, code; union { unsigned ui; unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(struct card *card, int size, struct field *out) {
  BEGIN(card);
  for (int i = 0; i < size; i++) {
    out[i].code = out[i].id == 230 && card->recovery != ABSENT ? SUCCESS : NOT_SUPPORTED;
    out[i].value.ull = 0;
    out[i].value.ui = card->recovery;
  }
  return SUCCESS;
}
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, health; };
int nvmlDeviceGetGpuFabricInfoV(struct card *card, struct fabric *out) {
  BEGIN(card); NEED(card->fabric);
  if (out->version != 0x02000024) return 25;
  out->status = SUCCESS; out->state = card->fabric; out->health = 0;
  return SUCCESS;
}
#endif

struct event { void *card; unsigned long long type, data; unsigned gi, ci; };
/* there may be one set at a time, so that one that is not freed shows; one whose wait failed fails for good */
static int set_exists, set_broken;
int nvmlEventSetCreate(void **out) {
  BEGIN(NULL);
  if (set_exists) return 23;
  set_exists = 1; set_broken = 0; *out = &events;
  return SUCCESS;
}
int nvmlEventSetFree(void *set) { (void)set; set_exists = 0; return SUCCESS; }
int nvmlDeviceRegisterEvents(struct card *card, unsigned long long types, void *set) { (void)types; (void)set; BEGIN(card); return SUCCESS; }
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned patience) {
  (void)set;
  int code = begin(__func__, NULL);
  if (code) set_broken = code;
  if (set_broken) return set_broken;
  if (patience == 0) for (;;) sleep(3600); /* the real one waits without limit */
  if (events_seen >= events) { usleep(1000 * patience); return TIMEOUT; }
  out->card = &cards[event_place[events_seen]];
  out->type = 8;
  out->data = event_xid[events_seen++];
  out->gi = out->ci = ~0u;
  return SUCCESS;
}
