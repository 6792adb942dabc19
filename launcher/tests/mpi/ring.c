/* A program of MPI: ranks say hello, and pass a number around. The first argument says what goes wrong, and at which
 * rank: "abort 2", "killed 2", "exit 2". */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, left, from, *number, is_set, here, local;
    MPI_Comm near;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    left = (rank + size - 1) % size;
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &from, 1, MPI_INT, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near);
    MPI_Comm_rank(near, &local);
    MPI_Comm_size(near, &here);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &is_set);
    printf("rank %d of %d heard of %d, is %d of %d here, program %d\n", rank, size, from, local, here,
           is_set ? *number : -1);
    fflush(stdout);
    if (argc > 2 && atoi(argv[2]) == rank) {
        if (!strcmp(argv[1], "abort"))
            MPI_Abort(MPI_COMM_WORLD, 7);
        if (!strcmp(argv[1], "killed"))
            raise(SIGKILL);
        if (!strcmp(argv[1], "exit"))
            _exit(0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
