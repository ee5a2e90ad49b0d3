/* The smallest server that refuses a tool, and the tool. Version 4.2.2 of the library ends with a signal: it takes a
 * namespace out of a list that does not have it (process_cbfunc in ptl_base_connection_hdlr.c). */

#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_server.h>
#include <pmix_tool.h>

static void on_tool(pmix_info_t *info, size_t count, pmix_tool_connection_cbfunc_t answer, void *data)
{
    (void) info, (void) count;
    pmix_proc_t nobody;
    PMIX_LOAD_PROCID(&nobody, "nobody", 0);
    answer(PMIX_ERR_NOT_SUPPORTED, &nobody, data);
}

int main(int count, char **words)
{
    pmix_info_t info[2];
    if (count == 3) {
        pmix_proc_t me;
        PMIX_INFO_LOAD(&info[0], PMIX_TOOL_ATTACHMENT_FILE, words[1], PMIX_STRING);
        return PMIx_tool_init(&me, info, 1) != PMIX_SUCCESS;
    }
    static pmix_server_module_t module = {.tool_connected = on_tool};
    bool yes = true;
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TOOL_SUPPORT, &yes, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TCP_REPORT_URI, words[1], PMIX_STRING);
    PMIx_server_init(&module, info, 2);
    if (fork() == 0) {
        alarm(10);
        execl(words[0], words[0], words[1], "tool", (char *) NULL);
        _exit(127);
    }
    alarm(20);
    wait(NULL);
    return 0;
}
