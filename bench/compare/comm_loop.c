/* The same work as `rowmill doctor links` in plain MPI: every rank writes its send buffer, takes part
   in a collective of the library, and reads every byte it received. Prints one JSON line per
   collective and size: the median over repetitions of the slowest rank's time. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static volatile uint32_t seen;

static void take_part(const char *verb, float *send, float *receive, int count, float value) {
    for (int i = 0; i < count; i++) send[i] = value;
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (verb[4] == 't')
        MPI_Alltoall(send, count / ranks, MPI_FLOAT, receive, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const uint32_t *words = (const uint32_t *)receive;
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) sum += words[i];
    seen = sum;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *verbs[] = {"all_to_all", "all_reduce"};
    enum { SAMPLES = 5 };
    for (int v = 0; v < 2; v++)
        for (int a = 1; a < argc; a++) {
            int count = atoi(argv[a]) / 4;
            float *send = malloc(4 * count), *receive = malloc(4 * count);
            int times = atoi(argv[a]) >= 1 << 22 ? 10 : 100;
            double samples[SAMPLES];
            for (int s = -1; s < SAMPLES; s++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double began = MPI_Wtime();
                for (int t = 0; t < times; t++) take_part(verbs[v], send, receive, count, t);
                double took = (MPI_Wtime() - began) / times, slowest;
                MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
                if (s >= 0) samples[s] = slowest;
            }
            qsort(samples, SAMPLES, sizeof *samples, by_value);
            if (rank == 0)
                printf("{\"verb\":\"%s\",\"bytes\":%s,\"us\":%.3f}\n", verbs[v], argv[a], 1e6 * samples[SAMPLES / 2]);
            free(send);
            free(receive);
        }
    MPI_Finalize();
    return 0;
}
