/* first_ends: the first thread of each rank ends, and another one computes on and calls MPI.
 *
 * In each step the second thread adds up a number over all ranks, adds it to the rank's log,
 * replaces a file by renaming another one, and appends a line to a third. The first thread ends at
 * once or, with --after STEP, after that step. */
#include "common.h"
#include "pace.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static int arguments;
static char **words;
static long after = -1;
/* -2: the options are not read yet. */
static long reached = -2;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void reach(long step) {
    pthread_mutex_lock(&lock);
    reached = step;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void *compute(void *unused) {
    char name[32], temporary[32], lines_name[32];
    struct pace pace = {0};
    long steps = 60, sum, all;
    int rank, level;
    FILE *log;
    const struct option options[] = {
        {"steps", "steps of the whole run", .number = &steps},
        {"after", "the first thread ends behind this step; -1: at once", .number = &after},
        PACE_OPTIONS(pace),
        {0},
    };
    (void)unused;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    parse_options(arguments, words, "Its first thread ends, another one computes on.", options);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    reach(-1);
    snprintf(lines_name, sizeof lines_name, "lines-%d", rank);
    snprintf(name, sizeof name, "log-%d", rank);
    log = fopen(name, "w");
    snprintf(name, sizeof name, "newest-%d", rank);
    snprintf(temporary, sizeof temporary, "temporary-%d", rank);
    sum = rank;
    for (long step = 0; step < steps; step++) {
        FILE *newest = fopen(temporary, "w");
        int lines = open(lines_name, O_CREAT | O_APPEND | O_WRONLY, 0600);
        if (!log || !newest || lines < 0) die("step %ld: %s", step, strerror(errno));
        MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum = all % 1000003 + rank;
        fprintf(log, "%ld %ld\n", step, sum);
        fflush(log);
        fprintf(newest, "%ld\n", sum);
        fclose(newest);
        if (rename(temporary, name)) die("rename: %s", strerror(errno));
        dprintf(lines, "step %ld\n", step);
        close(lines);
        if (rank == 0 && step % 10 == 0) printf("step %ld %ld\n", step, sum), fflush(stdout);
        reach(step);
        keep_pace(&pace, rank);
    }
    fclose(log);
    MPI_Finalize();
    exit(0);
}

int main(int argc, char **argv) {
    pthread_t thread;
    arguments = argc;
    words = argv;
    if (pthread_create(&thread, NULL, compute, NULL) != 0) return 1;
    pthread_mutex_lock(&lock);
    while (reached < -1 || reached < after) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    pthread_exit(NULL);
}
