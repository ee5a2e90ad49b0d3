/* What Rust cannot say itself about the PMIx library: macros, and structures that only they fill.
 *
 * Everything that PMIx asks of a server comes to the functions in `struct pmc_upcalls`, most of them in the
 * thread of the library. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pmix.h>
#include <pmix_server.h>

/* What a tool asks for with a pull or a push: as `Wants` in lib.rs. */
enum {
    PMC_REDIRECT = 1,
    PMC_TAG = 2,
    PMC_RANK = 8,
    PMC_TIMESTAMP = 16,
    PMC_XML = 32,
    PMC_COMPLETE = 64,
    /* The library of the tool reads its standard input. */
    PMC_COLLECTED = 256,
    /* Something else, which the tool cannot do without. */
    PMC_UNKNOWN = 128,
};

struct pmc_upcalls {
    /* Returns whether the tool that has just connected may do so. It says that it is this user's. */
    bool (*admit)(uint32_t user);
    /* A tool wants output. Returns a status. */
    int32_t (*pull)(const pmix_proc_t *procs, size_t count, uint32_t channels, uint32_t wants);
    /* A tool ends one of its pulls. */
    void (*stop)(void);
    /* A tool pushes input. Returns a status; after PMIX_SUCCESS, pmc_pmix_taken(token) follows. */
    int32_t (*push)(const pmix_proc_t *procs, size_t count, uint32_t wants, const uint8_t *bytes,
                    size_t size, void *token);
    /* Calls pmc_pmix_add(list) for each process. */
    void (*list)(void *list);
};

/* What ffi.rs knows of the library. */
_Static_assert(sizeof(pmix_proc_t) == 256 + sizeof(uint32_t), "size of a process");
_Static_assert(PMIX_RANK_WILDCARD == UINT32_MAX - 1, "all ranks");
_Static_assert(PMIX_FWD_STDOUT_CHANNEL == 2 && PMIX_FWD_STDERR_CHANNEL == 4, "channels");
_Static_assert(PMIX_SUCCESS == 0 && PMIX_ERR_NOT_SUPPORTED == -47 && PMIX_ERR_NOT_FOUND == -46, "statuses");
_Static_assert(PMIX_ERR_TIMEOUT == -24 && PMIX_ERR_IOF_COMPLETE == -173 && PMIX_ERR_IOF_FAILURE == -172,
               "statuses");

/* A tool does not say whose it is. */
#define NO_USER UINT32_MAX

static struct pmc_upcalls upcalls;
static char run[PMIX_MAX_NSLEN + 1];
/* Only the thread of the library counts. */
static unsigned tools;

static uint32_t wants_of(const pmix_info_t *info, size_t count)
{
    static const struct {
        const char *key;
        uint32_t want;
    } KNOWN[] = {
        {PMIX_IOF_COPY, 0},
        {PMIX_IOF_REDIRECT, PMC_REDIRECT},
        {PMIX_IOF_TAG_OUTPUT, PMC_TAG},
        {PMIX_TAG_OUTPUT, PMC_TAG},
        {PMIX_IOF_TAG_FULLNAME_OUTPUT, PMC_TAG},
        {PMIX_IOF_RANK_OUTPUT, PMC_RANK},
        {PMIX_IOF_TIMESTAMP_OUTPUT, PMC_TIMESTAMP},
        {PMIX_TIMESTAMP_OUTPUT, PMC_TIMESTAMP},
        {PMIX_IOF_XML_OUTPUT, PMC_XML},
        {PMIX_IOF_COMPLETE, PMC_COMPLETE},
        {PMIX_IOF_PUSH_STDIN, PMC_COLLECTED},
    };
    uint32_t wants = 0;
    for (size_t at = 0; at < count; at++) {
        bool is_known = false;
        for (size_t known = 0; known < sizeof(KNOWN) / sizeof(KNOWN[0]); known++) {
            if (PMIX_CHECK_KEY(&info[at], KNOWN[known].key)) {
                is_known = true;
                if (PMIX_INFO_TRUE(&info[at])) {
                    wants |= KNOWN[known].want;
                }
            }
        }
        if (!is_known && PMIX_INFO_IS_REQUIRED(&info[at])) {
            wants |= PMC_UNKNOWN;
        }
    }
    return wants;
}

static void on_tool(pmix_info_t *info, size_t count, pmix_tool_connection_cbfunc_t answer, void *data)
{
    pmix_proc_t tool;
    char *name = NULL;
    pmix_rank_t rank = 0;
    uint32_t user = NO_USER;
    for (size_t at = 0; at < count; at++) {
        if (PMIX_CHECK_KEY(&info[at], PMIX_NSPACE) && info[at].value.type == PMIX_STRING) {
            name = info[at].value.data.string;
        } else if (PMIX_CHECK_KEY(&info[at], PMIX_RANK) && info[at].value.type == PMIX_PROC_RANK) {
            rank = info[at].value.data.rank;
        } else if (PMIX_CHECK_KEY(&info[at], PMIX_USERID) && info[at].value.type == PMIX_UINT32) {
            user = info[at].value.data.uint32;
        }
    }
    if (!upcalls.admit(user)) {
        /* Its connection is cut already. Version 4.2.2 of the library crashes if the answer is a refusal. */
        return;
    }
    if (name != NULL && *name != '\0' && strcmp(name, run) != 0) {
        PMIX_LOAD_PROCID(&tool, name, rank);
    } else {
        char own[PMIX_MAX_NSLEN + 32];
        snprintf(own, sizeof(own), "%.200s-tool-%u", run, ++tools);
        PMIX_LOAD_PROCID(&tool, own, 0);
    }
    answer(PMIX_SUCCESS, &tool, data);
}

/* A process that says it is a client: the run has none. */
static pmix_status_t on_client(const pmix_proc_t *proc, void *server_object, pmix_op_cbfunc_t answer, void *data)
{
    (void) proc;
    (void) server_object;
    (void) answer;
    (void) data;
    return upcalls.admit(NO_USER) ? PMIX_OPERATION_SUCCEEDED : PMIX_ERR_NOT_SUPPORTED;
}

static pmix_status_t on_pull(const pmix_proc_t procs[], size_t count, const pmix_info_t directives[],
                             size_t ndirs, pmix_iof_channel_t channels, pmix_op_cbfunc_t answer, void *data)
{
    (void) answer;
    (void) data;
    for (size_t at = 0; at < ndirs; at++) {
        if (PMIX_CHECK_KEY(&directives[at], PMIX_IOF_STOP)) {
            upcalls.stop();
            return PMIX_OPERATION_SUCCEEDED;
        }
    }
    /* Not later: version 4.2.2 frees what the answer needs as soon as this function returns PMIX_SUCCESS. */
    pmix_status_t status = upcalls.pull(procs, count, channels, wants_of(directives, ndirs));
    return status == PMIX_SUCCESS ? PMIX_OPERATION_SUCCEEDED : status;
}

struct token {
    pmix_op_cbfunc_t answer;
    void *data;
};

static pmix_status_t on_push(const pmix_proc_t *source, const pmix_proc_t targets[], size_t count,
                             const pmix_info_t directives[], size_t ndirs, const pmix_byte_object_t *bytes,
                             pmix_op_cbfunc_t answer, void *data)
{
    (void) source;
    struct token *token = malloc(sizeof(*token));
    if (token == NULL) {
        return PMIX_ERR_NOMEM;
    }
    *token = (struct token){answer, data};
    bool has_bytes = bytes != NULL && bytes->bytes != NULL;
    uint32_t wants = wants_of(directives, ndirs);
    /* The library sends an empty piece at the end of the tool's standard input. */
    if (!has_bytes || bytes->size == 0) {
        wants |= PMC_COMPLETE;
    }
    pmix_status_t status = upcalls.push(targets, count, wants,
                                        has_bytes ? (const uint8_t *) bytes->bytes : NULL,
                                        has_bytes ? bytes->size : 0, token);
    if (status != PMIX_SUCCESS) {
        free(token);
    }
    return status;
}

/* Answers a push. */
void pmc_pmix_taken(void *pointer, int32_t status)
{
    struct token *token = pointer;
    token->answer(status, token->data);
    free(token);
}

/* The processes that are asked for. */
struct list {
    pmix_proc_info_t *entries;
    size_t count, room;
    const char *host;
    pmix_rank_t rank;
    bool is_full;
};

void pmc_pmix_add(void *pointer, uint32_t rank, const char *task, const char *host)
{
    struct list *list = pointer;
    if (list->is_full || (list->rank != PMIX_RANK_WILDCARD && list->rank != rank) ||
        (list->host != NULL && strcmp(list->host, host) != 0)) {
        return;
    }
    if (list->count == list->room) {
        size_t room = list->room == 0 ? 16 : 2 * list->room;
        pmix_proc_info_t *entries = realloc(list->entries, room * sizeof(*entries));
        if (entries == NULL) {
            list->is_full = true;
            return;
        }
        list->entries = entries;
        list->room = room;
    }
    pmix_proc_info_t *entry = &list->entries[list->count];
    PMIX_PROC_INFO_CONSTRUCT(entry);
    PMIX_LOAD_PROCID(&entry->proc, run, rank);
    entry->executable_name = strdup(task);
    entry->hostname = strdup(host);
    entry->state = PMIX_PROC_STATE_RUNNING;
    list->count++;
}

static pmix_status_t add_processes(pmix_info_t *result, const char *key, const char *host, pmix_rank_t rank)
{
    struct list list = {NULL, 0, 0, host, rank, false};
    upcalls.list(&list);
    pmix_data_array_t *array = malloc(sizeof(*array));
    if (array == NULL || list.is_full) {
        free(array);
        PMIX_PROC_INFO_FREE(list.entries, list.count);
        return PMIX_ERR_NOMEM;
    }
    *array = (pmix_data_array_t){.type = PMIX_PROC_INFO, .size = list.count, .array = list.entries};
    PMIX_LOAD_KEY(result->key, key);
    result->value.type = PMIX_DATA_ARRAY;
    result->value.data.darray = array;
    return PMIX_SUCCESS;
}

static pmix_status_t answer_key(const pmix_query_t *query, const char *key, pmix_info_t *result)
{
    const char *nspace = NULL, *host = NULL;
    pmix_rank_t rank = PMIX_RANK_WILDCARD;
    for (size_t at = 0; at < query->nqual; at++) {
        const pmix_info_t *qualifier = &query->qualifiers[at];
        if (PMIX_CHECK_KEY(qualifier, PMIX_NSPACE) && qualifier->value.type == PMIX_STRING) {
            nspace = qualifier->value.data.string;
        } else if (PMIX_CHECK_KEY(qualifier, PMIX_RANK) && qualifier->value.type == PMIX_PROC_RANK) {
            rank = qualifier->value.data.rank;
        } else if (PMIX_CHECK_KEY(qualifier, PMIX_PROCID) && qualifier->value.type == PMIX_PROC) {
            nspace = qualifier->value.data.proc->nspace;
            rank = qualifier->value.data.proc->rank;
        } else if (PMIX_CHECK_KEY(qualifier, PMIX_HOSTNAME) && qualifier->value.type == PMIX_STRING) {
            host = qualifier->value.data.string;
        }
    }
    if (nspace != NULL && *nspace != '\0' && strcmp(nspace, run) != 0) {
        return PMIX_ERR_NOT_FOUND;
    }
    if (strcmp(key, PMIX_QUERY_NAMESPACES) == 0) {
        PMIX_INFO_LOAD(result, PMIX_QUERY_NAMESPACES, run, PMIX_STRING);
        return PMIX_SUCCESS;
    }
    if (strcmp(key, PMIX_QUERY_PROC_TABLE) == 0) {
        return add_processes(result, key, host, rank);
    }
    return PMIX_ERR_NOT_SUPPORTED;
}

struct results {
    pmix_info_t *info;
    size_t room;
};

static void release(void *pointer)
{
    struct results *results = pointer;
    PMIX_INFO_FREE(results->info, results->room);
    free(results);
}

static pmix_status_t on_query(pmix_proc_t *source, pmix_query_t *queries, size_t nqueries,
                              pmix_info_cbfunc_t answer, void *data)
{
    (void) source;
    struct results *results = calloc(1, sizeof(*results));
    if (results == NULL) {
        return PMIX_ERR_NOMEM;
    }
    for (size_t at = 0; at < nqueries; at++) {
        for (char **key = queries[at].keys; key != NULL && *key != NULL; key++) {
            results->room++;
        }
    }
    PMIX_INFO_CREATE(results->info, results->room);
    size_t count = 0;
    pmix_status_t refusal = PMIX_ERR_NOT_SUPPORTED;
    for (size_t at = 0; at < nqueries; at++) {
        for (char **key = queries[at].keys; key != NULL && *key != NULL; key++) {
            pmix_status_t status = answer_key(&queries[at], *key, &results->info[count]);
            if (status == PMIX_SUCCESS) {
                count++;
            } else {
                refusal = status;
            }
        }
    }
    if (count == 0) {
        release(results);
        return refusal;
    }
    pmix_status_t status = count == results->room ? PMIX_SUCCESS : PMIX_QUERY_PARTIAL_SUCCESS;
    answer(status, results->info, count, data, release, results);
    return PMIX_SUCCESS;
}

/* Removes the settings of the library. Those of an MPI launcher would make this process a client of it. */
void pmc_pmix_clear_environment(void)
{
    extern char **environ;
    for (char **entry = environ; *entry != NULL;) {
        char name[128];
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "PMIX_", 5) != 0 || length >= sizeof(name)) {
            entry++;
            continue;
        }
        memcpy(name, *entry, length);
        name[length] = '\0';
        /* The next entry takes its place. */
        unsetenv(name);
    }
}

/* Starts the server. Returns a status. */
int32_t pmc_pmix_start(const char *nspace, const char *directory, const char *uri_file,
                       const struct pmc_upcalls *given)
{
    upcalls = *given;
    PMIX_LOAD_NSPACE(run, nspace);
    pmc_pmix_clear_environment();
    /* Output that nobody wants any more is not to gather: 1 is the least that the library can do. */
    setenv("PMIX_MCA_pmix_max_iof_cache", "1", 1);
    static pmix_server_module_t module;
    module.client_connected = on_client;
    module.tool_connected = on_tool;
    module.iof_pull = on_pull;
    module.push_stdin = on_push;
    module.query = on_query;
    pmix_info_t info[7];
    pmix_rank_t rank = 0;
    bool yes = true, no = false;
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_NSPACE, nspace, PMIX_STRING);
    PMIX_INFO_LOAD(&info[1], PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
    PMIX_INFO_LOAD(&info[2], PMIX_SERVER_TOOL_SUPPORT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[3], PMIX_SERVER_SESSION_SUPPORT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[4], PMIX_SERVER_TMPDIR, directory, PMIX_STRING);
    PMIX_INFO_LOAD(&info[5], PMIX_TCP_REPORT_URI, uri_file, PMIX_STRING);
    PMIX_INFO_LOAD(&info[6], PMIX_IOF_LOCAL_OUTPUT, &no, PMIX_BOOL);
    pmix_status_t status = PMIx_server_init(&module, info, 7);
    for (size_t at = 0; at < 7; at++) {
        PMIX_INFO_DESTRUCT(&info[at]);
    }
    return status;
}

/* Delivers output to the tools that have asked for it, or its end; returns when the library has it. */
int32_t pmc_pmix_deliver(uint32_t rank, bool is_error, const uint8_t *bytes, size_t size)
{
    bool yes = true;
    pmix_info_t complete;
    PMIX_INFO_LOAD(&complete, PMIX_IOF_COMPLETE, &yes, PMIX_BOOL);
    pmix_proc_t source;
    PMIX_LOAD_PROCID(&source, run, rank);
    pmix_byte_object_t object = {.bytes = (char *) bytes, .size = size};
    pmix_iof_channel_t channel = is_error ? PMIX_FWD_STDERR_CHANNEL : PMIX_FWD_STDOUT_CHANNEL;
    return PMIx_server_IOF_deliver(&source, channel, &object, &complete, size == 0 ? 1 : 0, NULL, NULL);
}

void pmc_pmix_stop(void)
{
    PMIx_server_finalize();
}

const char *pmc_pmix_reason(int32_t status)
{
    return PMIx_Error_string(status);
}
