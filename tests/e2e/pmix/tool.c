/* A tool that is written for PMIx and knows nothing of this project.
 *
 * tool HOW list                        the processes: namespace, rank, program, host
 * tool HOW ask KEY [NAMESPACE]         the status of a query
 * tool HOW pull RANK [WANT...]         writes the output until both streams have ended
 * tool HOW push RANK TEXT              pushes the text, then its end
 * tool HOW stdin RANK                  has the library push the standard input; ends when it is taken
 *
 * HOW is pid:NUMBER, namespace:NAME, or the path of a file with the address of the server. RANK may be `all`, or
 * NAMESPACE:RANK. The exit code is 3 if the server refuses; the last line of standard error is the status. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_tool.h>

static volatile int answered, answer, ends;

static int finish(pmix_status_t status)
{
    fflush(stdout);
    PMIx_tool_finalize();
    fprintf(stderr, "%s\n", PMIx_Error_string(status));
    return status == PMIX_SUCCESS ? 0 : 3;
}

static void on_output(size_t handler, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *bytes,
                      pmix_info_t *info, size_t count)
{
    (void) handler;
    (void) source;
    fwrite(bytes->bytes, 1, bytes->size, channel == PMIX_FWD_STDERR_CHANNEL ? stderr : stdout);
    for (size_t at = 0; at < count; at++) {
        ends += PMIX_CHECK_KEY(&info[at], PMIX_IOF_COMPLETE) && PMIX_INFO_TRUE(&info[at]);
    }
    if (bytes->size > 0) {
        fflush(stdout);
    }
}

static void on_registered(pmix_status_t status, size_t handler, void *data)
{
    (void) handler;
    (void) data;
    answer = status;
    answered = 1;
}

static void on_done(pmix_status_t status, void *data)
{
    (void) data;
    answer = status;
    answered = 1;
}

static pmix_status_t wait_for(pmix_status_t called)
{
    while (called == PMIX_SUCCESS && !answered) {
        usleep(1000);
    }
    answered = 0;
    return called == PMIX_SUCCESS ? answer : called;
}

static pmix_status_t ask(const char *key, const char *namespace, pmix_info_t **info, size_t *count)
{
    int added;
    pmix_query_t *query;
    PMIX_QUERY_CREATE(query, 1);
    PMIX_ARGV_APPEND(added, query[0].keys, key);
    (void) added;
    if (namespace != NULL) {
        PMIX_INFO_CREATE(query[0].qualifiers, 1);
        query[0].nqual = 1;
        PMIX_INFO_LOAD(&query[0].qualifiers[0], PMIX_NSPACE, namespace, PMIX_STRING);
    }
    *info = NULL;
    *count = 0;
    return PMIx_Query_info(query, 1, info, count);
}

static int list(const char *namespace)
{
    pmix_info_t *info;
    size_t count;
    pmix_status_t status = ask(PMIX_QUERY_PROC_TABLE, namespace, &info, &count);
    if (status == PMIX_SUCCESS && count > 0) {
        pmix_data_array_t *array = info[0].value.data.darray;
        pmix_proc_info_t *processes = array->array;
        for (size_t at = 0; at < array->size; at++) {
            printf("%s %u %s %s\n", processes[at].proc.nspace, processes[at].proc.rank,
                   processes[at].executable_name, processes[at].hostname);
        }
    }
    return finish(status);
}

static int pull(pmix_proc_t *process, char **wants, int count)
{
    static const struct {
        const char *word, *key;
    } WANTS[] = {
        {"tag", PMIX_IOF_TAG_OUTPUT},    {"timestamp", PMIX_IOF_TIMESTAMP_OUTPUT},
        {"xml", PMIX_IOF_XML_OUTPUT},    {"redirect", PMIX_IOF_REDIRECT},
        {"copy", PMIX_IOF_COPY},         {"rank", PMIX_IOF_RANK_OUTPUT},
        {"file", PMIX_IOF_OUTPUT_TO_FILE},
    };
    pmix_info_t *directives;
    bool yes = true;
    PMIX_INFO_CREATE(directives, count);
    for (int at = 0; at < count; at++) {
        for (size_t known = 0; known < sizeof(WANTS) / sizeof(WANTS[0]); known++) {
            if (strcmp(wants[at], WANTS[known].word) == 0) {
                PMIX_INFO_LOAD(&directives[at], WANTS[known].key, &yes, PMIX_BOOL);
                PMIX_INFO_REQUIRED(&directives[at]);
            }
        }
    }
    pmix_status_t status = wait_for(PMIx_IOF_pull(process, 1, directives, count,
                                                  PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL, on_output,
                                                  on_registered, NULL));
    while (status == PMIX_SUCCESS && ends < 2) {
        usleep(1000);
    }
    return finish(status);
}

static int push(pmix_proc_t *process, char *text)
{
    pmix_byte_object_t bytes = {.bytes = text, .size = strlen(text)};
    pmix_status_t status = wait_for(PMIx_IOF_push(process, 1, &bytes, NULL, 0, on_done, NULL));
    if (status == PMIX_SUCCESS) {
        bool yes = true;
        pmix_info_t complete;
        PMIX_INFO_LOAD(&complete, PMIX_IOF_COMPLETE, &yes, PMIX_BOOL);
        /* Version 4.2.2 sends nothing without bytes, even for this. */
        bytes = (pmix_byte_object_t){NULL, 0};
        status = wait_for(PMIx_IOF_push(process, 1, &bytes, &complete, 1, on_done, NULL));
    }
    return finish(status);
}

static void on_failure(size_t handler, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                       size_t count, pmix_info_t *results, size_t nresults,
                       pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void) handler, (void) source, (void) info, (void) count, (void) results, (void) nresults;
    fprintf(stderr, "event %s\n", PMIx_Error_string(status));
    answer = status;
    answered = 1;
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static int push_stdin(pmix_proc_t *process)
{
    pmix_status_t failure = PMIX_ERR_IOF_FAILURE;
    PMIx_Register_event_handler(&failure, 1, NULL, 0, on_failure, NULL, NULL);
    bool yes = true;
    pmix_info_t collect;
    PMIX_INFO_LOAD(&collect, PMIX_IOF_PUSH_STDIN, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_IOF_push(process, 1, NULL, &collect, 1, NULL, NULL);
    /* The library does not say when the input is taken: another process shows that, and ends this one. */
    for (int tenths = 0; status == PMIX_OPERATION_SUCCEEDED && !answered && tenths < 300; tenths++) {
        usleep(100000);
    }
    return finish(answered ? answer : status);
}

int main(int count, char **words)
{
    if (count < 3) {
        return 2;
    }
    pmix_proc_t me, process;
    pmix_info_t how;
    if (strncmp(words[1], "pid:", 4) == 0) {
        pid_t pid = atoi(words[1] + 4);
        PMIX_INFO_LOAD(&how, PMIX_SERVER_PIDINFO, &pid, PMIX_PID);
    } else if (strncmp(words[1], "namespace:", 10) == 0) {
        PMIX_INFO_LOAD(&how, PMIX_SERVER_NSPACE, words[1] + 10, PMIX_STRING);
    } else {
        PMIX_INFO_LOAD(&how, PMIX_TOOL_ATTACHMENT_FILE, words[1], PMIX_STRING);
    }
    pmix_status_t status = PMIx_tool_init(&me, &how, 1);
    if (status != PMIX_SUCCESS) {
        fprintf(stderr, "%s\n", PMIx_Error_string(status));
        return 4;
    }
    pmix_info_t *info;
    size_t found;
    status = ask(PMIX_QUERY_NAMESPACES, NULL, &info, &found);
    if (status != PMIX_SUCCESS || found != 1) {
        return finish(status);
    }
    const char *namespace = info[0].value.data.string;
    if (strcmp(words[2], "list") == 0) {
        return list(namespace);
    }
    if (strcmp(words[2], "ask") == 0 && count >= 4) {
        return finish(ask(words[3], count > 4 ? words[4] : namespace, &info, &found));
    }
    if (count < 4) {
        return 2;
    }
    char *rank = strrchr(words[3], ':');
    if (rank != NULL) {
        *rank++ = '\0';
        namespace = words[3];
    } else {
        rank = words[3];
    }
    PMIX_LOAD_PROCID(&process, namespace, strcmp(rank, "all") == 0 ? PMIX_RANK_WILDCARD : strtoul(rank, NULL, 10));
    if (strcmp(words[2], "pull") == 0) {
        return pull(&process, words + 4, count - 4);
    }
    if (strcmp(words[2], "push") == 0 && count == 5) {
        return push(&process, words[4]);
    }
    return strcmp(words[2], "stdin") == 0 ? push_stdin(&process) : 2;
}
