// pool: C++ threads that take jobs from a queue; the thread that has found a result sends it
// (MPI_THREAD_SERIALIZED: all threads call MPI, one at a time).
//
// In each round rank 0 sends how hard the round is. The threads of each rank do its jobs in any
// order. The thread that does a rank's last job exchanges the round's result with the next rank.
// Messages and output do not depend on which thread did which job, so the output is the same in
// every run of the same options and number of ranks.
#include "common.h"
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Pool {
    std::mutex mutex;
    std::condition_variable wake, done;
    std::vector<uint64_t> results;
    long next_job = 0, undone = 0, jobs;
    uint64_t round = 0, hash = HASH_START;
    bool over = false;
    int rank, ranks;
};

uint64_t work(uint64_t round, long job, int rank, long hardness) {
    uint64_t x = random_word(round, uint64_t(job) * 4096 + uint64_t(rank));
    for (long i = 0; i < hardness; i++) x = x * 6364136223846793005ull + 1442695040888963407ull;
    return x;
}

// Sends the round's results to the next rank and receives those of the rank before. The caller
// holds the lock, so no other thread is in MPI.
void finish_round(Pool &pool) {
    uint64_t mine = hash_bytes(pool.hash, pool.results.data(), pool.results.size() * 8), theirs;
    MPI_Sendrecv(&mine, 1, MPI_UINT64_T, (pool.rank + 1) % pool.ranks, 0, &theirs, 1, MPI_UINT64_T,
                 (pool.rank + pool.ranks - 1) % pool.ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    pool.hash = hash_bytes(mine, &theirs, sizeof theirs);
    pool.done.notify_one();
}

void labour(Pool &pool, long hardness) {
    std::unique_lock<std::mutex> lock(pool.mutex);
    for (;;) {
        pool.wake.wait(lock, [&] { return pool.over || pool.next_job < pool.jobs; });
        if (pool.over) return;
        long job = pool.next_job++;
        uint64_t round = pool.round;
        lock.unlock();
        uint64_t result = work(round, job, pool.rank, hardness);
        lock.lock();
        pool.results[size_t(job)] = result;
        if (--pool.undone == 0) finish_round(pool);
    }
}

} // namespace

int main(int argc, char **argv) {
    long threads = 2, rounds = 1000, jobs = 16, hardness = 5000, every = 100;
    option options[] = {
        {"threads", "threads of a rank", &threads, nullptr, nullptr},
        {"rounds", "rounds", &rounds, nullptr, nullptr},
        {"jobs", "jobs of a rank in a round", &jobs, nullptr, nullptr},
        {"hardness", "steps of a job", &hardness, nullptr, nullptr},
        {"every", "report every so many rounds", &every, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr},
    };
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    if (provided < MPI_THREAD_SERIALIZED) die("the MPI library lets one thread call it only");
    parse_options(argc, argv, "C++ threads that do jobs and call MPI in turns.", options);
    Pool pool;
    MPI_Comm_rank(MPI_COMM_WORLD, &pool.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &pool.ranks);
    pool.jobs = pool.next_job = jobs;
    pool.results.resize(size_t(jobs));
    std::vector<std::thread> all;
    for (long i = 0; i < threads; i++) all.emplace_back(labour, std::ref(pool), hardness);
    std::unique_lock<std::mutex> lock(pool.mutex);
    for (long round = 1; round <= rounds; round++) {
        pool.round = uint64_t(round);
        pool.undone = jobs;
        pool.next_job = 0;
        pool.wake.notify_all();
        pool.done.wait(lock, [&] { return pool.undone == 0; });
        if (every > 0 && round % every == 0 && pool.rank == 0) {
            printf("round %ld %016llx\n", round, (unsigned long long)pool.hash);
            fflush(stdout);
        }
    }
    pool.over = true;
    pool.wake.notify_all();
    lock.unlock();
    for (auto &thread : all) thread.join();
    MPI_Finalize();
    return 0;
}
