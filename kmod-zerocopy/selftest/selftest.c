// SPDX-License-Identifier: GPL-2.0
/*
 * selftest [PART-OF-A-NAME]: checks what the module promises. Needs root, and for some checks a slow block
 * device to read from, SLOW_DEVICE in the environment. A line for each: "passed NAME", "failed NAME",
 * "skipped NAME: why".
 */
#include "selftest.h"

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
#define X(name) { #name, name },
	SDZC_CHECKS(X)
#undef X
};

static const char *const leftovers[] = { "pools", "regions", "channels", "handles", "pages", "stock", "accounts" };

int main(int argc, char **argv)
{
	int failed = 0, run = 0;

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		const char *left = NULL;
		int status;

		if (argc > 1 && !strstr(checks[i].name, argv[1]))
			continue;
		fflush(stdout);
		pid_t child = fork();

		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(120);
			checks[i].run();
			_exit(0);
		}
		waitpid(child, &status, 0);
		/* Children of a check that ended early may still be on their way. */
		for (int tries = 0; tries < 500; tries++) {
			left = NULL;
			for (size_t j = 0; j < sizeof(leftovers) / sizeof(leftovers[0]); j++)
				if (counter(leftovers[j]) != 0)
					left = leftovers[j];
			if (!left)
				break;
			usleep(20000);
		}
		run++;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			printf("skipped selftest %s: see above\n", checks[i].name);
		else if (status != 0)
			printf("failed selftest %s: status 0x%x\n", checks[i].name, status);
		else if (left)
			printf("failed selftest %s: %ld %s are left\n", checks[i].name, counter(left), left);
		else
			printf("passed selftest %s\n", checks[i].name);
		failed += status != 0 || left;
		fflush(stdout);
	}
	return failed || !run;
}
