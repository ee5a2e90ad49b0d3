/* A server for the ranks of a launch on one host: `ranks.rs`. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_server.h>

void pmc_pmix_clear_environment(void);

/* They come in the thread of the library. */
struct pmc_rank_upcalls {
    /* Returns whether what says that it is this rank may be it. */
    bool (*begun)(uint32_t rank);
    void (*finalized)(uint32_t rank);
    void (*abort)(uint32_t rank, int32_t code);
    /* All ranks of this host are at a fence. pmc_ranks_pass() answers. */
    void (*fence)(const uint8_t *bytes, size_t size);
};

static struct pmc_rank_upcalls upcalls;
static char launch[PMIX_MAX_NSLEN + 1];
static uint32_t launch_size;

/* The fence at which all ranks of this host are: one at a time, as all ranks of the launch take part. */
static pmix_modex_cbfunc_t fence_answer;
static void *fence_data;

static pmix_status_t on_begun(const pmix_proc_t *proc, void *object, pmix_info_t info[], size_t count,
                              pmix_op_cbfunc_t answer, void *data)
{
    (void) object, (void) info, (void) count, (void) answer, (void) data;
    return upcalls.begun(proc->rank) ? PMIX_OPERATION_SUCCEEDED : PMIX_ERR_NOT_SUPPORTED;
}

static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t answer, void *data)
{
    (void) object, (void) answer, (void) data;
    upcalls.finalized(proc->rank);
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status, const char text[],
                              pmix_proc_t procs[], size_t count, pmix_op_cbfunc_t answer, void *data)
{
    (void) object, (void) text, (void) procs, (void) count, (void) answer, (void) data;
    upcalls.abort(proc->rank, status);
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_fence(const pmix_proc_t procs[], size_t count, const pmix_info_t info[], size_t infos,
                              char *bytes, size_t size, pmix_modex_cbfunc_t answer, void *data)
{
    (void) info, (void) infos;
    bool are_all = count == launch_size || (count == 1 && procs[0].rank == PMIX_RANK_WILDCARD);
    if (!are_all || fence_answer != NULL) {
        return PMIX_ERR_NOT_SUPPORTED;
    }
    fence_answer = answer;
    fence_data = data;
    upcalls.fence((const uint8_t *) bytes, size);
    free(bytes);
    return PMIX_SUCCESS;
}

/* Lets ranks pass the fence. */
void pmc_ranks_pass(uint8_t *bytes, size_t size)
{
    pmix_modex_cbfunc_t answer = fence_answer;
    void *data = fence_data;
    fence_answer = NULL;
    char *copy = NULL;
    if (size > 0) {
        copy = malloc(size);
        if (copy == NULL) {
            abort();
        }
        memcpy(copy, bytes, size);
    }
    if (answer != NULL) {
        answer(PMIX_SUCCESS, copy, size, data, free, copy);
    } else {
        free(copy);
    }
}

/* Starts the server. `hosts` are their names with commas between them, `places` the ranks of each host with
 * semicolons between hosts, `local` the ranks of this host; `programs` the programs of the local ranks. */
int32_t pmc_ranks_start(const char *name, const char *directory, const char *hosts, const char *places,
                        uint32_t host_count, uint32_t size, uint32_t node, const char *own_host,
                        const char *peers, const uint32_t *local, const uint32_t *programs, uint32_t local_count,
                        const uint32_t *host_of, const char *const *host_names, uint32_t program_count,
                        const struct pmc_rank_upcalls *given)
{
    upcalls = *given;
    launch_size = size;
    PMIX_LOAD_NSPACE(launch, name);
    pmc_pmix_clear_environment();
    static pmix_server_module_t module;
    module.client_connected2 = on_begun;
    module.client_finalized = on_finalized;
    module.abort = on_abort;
    module.fence_nb = on_fence;
    pmix_info_t setting[4];
    pmix_rank_t own_rank = node;
    char server[PMIX_MAX_NSLEN + 1];
    snprintf(server, sizeof(server), "%.200s-server", name);
    PMIX_INFO_LOAD(&setting[0], PMIX_SERVER_NSPACE, server, PMIX_STRING);
    PMIX_INFO_LOAD(&setting[1], PMIX_SERVER_RANK, &own_rank, PMIX_PROC_RANK);
    PMIX_INFO_LOAD(&setting[2], PMIX_SERVER_TMPDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&setting[3], PMIX_HOSTNAME, own_host, PMIX_STRING);
    pmix_status_t status = PMIx_server_init(&module, setting, 4);
    if (status != PMIX_SUCCESS) {
        return status;
    }
    char *node_map = NULL, *rank_map = NULL;
    if ((status = PMIx_generate_regex(hosts, &node_map)) != PMIX_SUCCESS ||
        (status = PMIx_generate_ppn(places, &rank_map)) != PMIX_SUCCESS) {
        return status;
    }
    size_t count = 0, room = 17 + size;
    pmix_info_t *info;
    PMIX_INFO_CREATE(info, room);
    bool no = false;
    uint32_t zero = 0;
    pmix_rank_t leader = local_count > 0 ? local[0] : 0;
    PMIX_INFO_LOAD(&info[count++], PMIX_JOBID, name, PMIX_STRING);
    PMIX_INFO_LOAD(&info[count++], PMIX_SESSION_ID, &zero, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_SPAWNED, &no, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[count++], PMIX_TMPDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&info[count++], PMIX_NSDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&info[count++], PMIX_NODE_MAP, node_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[count++], PMIX_PROC_MAP, rank_map, PMIX_REGEX);
    PMIX_INFO_LOAD(&info[count++], PMIX_UNIV_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_JOB_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_MAX_PROCS, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_NUM_NODES, &host_count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_JOB_NUM_APPS, &program_count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_LOCAL_SIZE, &local_count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_NODE_SIZE, &local_count, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[count++], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
    PMIX_INFO_LOAD(&info[count++], PMIX_LOCALLDR, &leader, PMIX_PROC_RANK);
    uint16_t *next = calloc(host_count, sizeof(*next));
    if (next == NULL) {
        return PMIX_ERR_NOMEM;
    }
    for (uint32_t rank = 0; rank < size; rank++) {
        uint32_t host = host_of[rank];
        uint32_t program = 0;
        for (uint32_t at = 0; at < local_count; at++) {
            if (local[at] == rank) {
                program = programs[at];
            }
        }
        uint16_t local_rank = next[host]++;
        pmix_info_t *of;
        pmix_data_array_t *array;
        PMIX_DATA_ARRAY_CREATE(array, 8, PMIX_INFO);
        of = (pmix_info_t *) array->array;
        PMIX_INFO_LOAD(&of[0], PMIX_RANK, &rank, PMIX_PROC_RANK);
        PMIX_INFO_LOAD(&of[1], PMIX_APPNUM, &program, PMIX_UINT32);
        PMIX_INFO_LOAD(&of[2], PMIX_GLOBAL_RANK, &rank, PMIX_PROC_RANK);
        PMIX_INFO_LOAD(&of[3], PMIX_APP_RANK, &rank, PMIX_PROC_RANK);
        PMIX_INFO_LOAD(&of[4], PMIX_LOCAL_RANK, &local_rank, PMIX_UINT16);
        PMIX_INFO_LOAD(&of[5], PMIX_NODE_RANK, &local_rank, PMIX_UINT16);
        PMIX_INFO_LOAD(&of[6], PMIX_NODEID, &host, PMIX_UINT32);
        PMIX_INFO_LOAD(&of[7], PMIX_HOSTNAME, host_names[host], PMIX_STRING);
        PMIX_LOAD_KEY(info[count].key, PMIX_PROC_DATA);
        info[count].value.type = PMIX_DATA_ARRAY;
        info[count].value.data.darray = array;
        count++;
    }
    free(next);
    /* Without a function for the answer, these calls wait. */
    status = PMIx_server_register_nspace(launch, (int) local_count, info, count, NULL, NULL);
    PMIX_INFO_FREE(info, room);
    free(node_map);
    free(rank_map);
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
        return status;
    }
    for (uint32_t at = 0; at < local_count; at++) {
        pmix_proc_t proc;
        PMIX_LOAD_PROCID(&proc, launch, local[at]);
        status = PMIx_server_register_client(&proc, getuid(), getgid(), NULL, NULL, NULL);
        if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED) {
            return status;
        }
    }
    return PMIX_SUCCESS;
}

/* Calls `add` for each variable of a rank. */
int32_t pmc_ranks_environment(uint32_t rank, void (*add)(void *list, const char *variable), void *list)
{
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, launch, rank);
    char **environment = NULL;
    pmix_status_t status = PMIx_server_setup_fork(&proc, &environment);
    for (char **entry = environment; status == PMIX_SUCCESS && entry != NULL && *entry != NULL; entry++) {
        add(list, *entry);
    }
    for (char **entry = environment; entry != NULL && *entry != NULL; entry++) {
        free(*entry);
    }
    free(environment);
    return status;
}
