/* heat INPUT RESULT: how the temperatures of a rod even out. Each rank has a part of the rod, and exchanges the
   temperatures at its ends with its neighbours. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 200

static void fail(const char *what) {
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 3) {
        fprintf(stderr, "usage: heat INPUT RESULT\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double *rod = NULL;
    int points = 0;
    if (rank == 0) {
        FILE *input = fopen(argv[1], "r");
        double value;
        if (!input) fail(argv[1]);
        while (fscanf(input, "%lf", &value) == 1) {
            rod = realloc(rod, (points + 1) * sizeof *rod);
            if (!rod) fail("rod");
            rod[points++] = value;
        }
        fclose(input);
    }
    MPI_Bcast(&points, 1, MPI_INT, 0, MPI_COMM_WORLD);
    int own = points / ranks;
    /* With a place at each end for a neighbour's temperature. */
    double *part = calloc(own + 2, sizeof *part), *next = calloc(own + 2, sizeof *next);
    if (!part || !next) fail("part");
    MPI_Scatter(rod, own, MPI_DOUBLE, part + 1, own, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    for (int step = 0; step < STEPS; step++) {
        MPI_Sendrecv(part + 1, 1, MPI_DOUBLE, left, 0, part + own + 1, 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(part + own, 1, MPI_DOUBLE, right, 1, part, 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (left == MPI_PROC_NULL) part[0] = part[1];
        if (right == MPI_PROC_NULL) part[own + 1] = part[own];
        for (int i = 1; i <= own; i++) next[i] = part[i] + 0.25 * (part[i - 1] - 2 * part[i] + part[i + 1]);
        double *swap = part;
        part = next;
        next = swap;
    }
    double sum = 0, total;
    for (int i = 1; i <= own; i++) sum += part[i];
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int length;
    MPI_Get_processor_name(name, &length);
    char *names = rank == 0 ? malloc((size_t)ranks * sizeof name) : NULL;
    MPI_Gather(name, sizeof name, MPI_CHAR, names, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *result = fopen(argv[2], "w");
        if (!result) fail(argv[2]);
        for (int i = 0; i < ranks; i++) fprintf(result, "rank %d on %s\n", i, names + (size_t)i * sizeof name);
        fprintf(result, "mean temperature %.3f\n", total / (own * ranks));
        if (fclose(result)) fail(argv[2]);
    }
    MPI_Finalize();
    return 0;
}
