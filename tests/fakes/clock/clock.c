/* A wall clock that can be set for some processes alone: preloaded, it adds what a shared file says to the time of day.
 * Only the wall clock is moved, as `date -s` and NTP do; monotonic clocks go on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("FAKE_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
	if (found != MAP_FAILED)
		shift = found;
	close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
	int failed = (int)syscall(SYS_clock_gettime, clock, out);
	if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		out->tv_sec += *shift;
	return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now))
		return -1;
	out->tv_sec = now.tv_sec;
	out->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}
