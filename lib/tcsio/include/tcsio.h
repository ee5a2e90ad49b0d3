/* Checkpoints of tasks: the functions of the checkpoint library of the Terascale Computing System.
 *
 * Programs in C and C++ link with -ltcsio. Programs in Fortran call the functions without the underscore at
 * the end, and link with -ltcsiof. See the guide, "Checkpoints". */
#ifndef TCSIO_H
#define TCSIO_H

#ifdef __cplusplus
extern "C" {
#define TCSIO_PREFIX const char
#else
#define TCSIO_PREFIX char
#endif

/* Must be called first, with 0. 0: successful. */
int tcs_init_(void *exp);

/* Number of the series of files from which the program goes on; 0: it begins; less: not known. */
int tcs_jobrestarted_(void);

/* Opens a file of the next series. The prefix has at most 20 letters and digits. Returns the number of the file,
 * or -1. */
int tcs_open_write_(TCSIO_PREFIX *prefix);

/* Opens the file of the newest complete series of earlier attempts. Returns the number of the file, or -1. */
int tcs_open_read_(TCSIO_PREFIX *prefix);

/* Write and read *len elements of *datasize, 8 or 4 bytes. 0: all of them. */
int tcs_write_(int *lun, void *A, const long *len, int *datasize);
int tcs_write8_(int *lun, void *A, const long *len);
int tcs_write4_(int *lun, void *A, const long *len);
int tcs_read_(int *lun, void *A, const void *len, int *datasize); /* len: the address of an int or a long */
int tcs_read8_(int *lun, void *A, long *len);
int tcs_read4_(int *lun, void *A, long *len);

/* Closes a file. *keep 1: the file is also copied to $TMPDIR/PREFIX.RANK.SERIES. 0: the file counts. */
int tcs_close_(int *lun, int *keep);

/* Must be called at the end. 0: successful. */
int tcs_finalize_(void);

/* Says something about the progress. length 0, or a null pointer: the text ends with a zero. 0: successful. */
int tcs_postmessage_(const char *msg, int *length);

/* Positive: the run is about to end, so save now; 0: it is not; less: not known. */
int tcs_drainoperation_(void);

/* 1: save now, because the run is about to end, or enough time has passed; 0: not now; -1: not known. Under MPI,
 * one rank asks and tells the others. */
int pmc_checkpoint_due(void);

#undef TCSIO_PREFIX
#ifdef __cplusplus
}
#endif

#endif
