# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_pmc_global_optspecs
    string join \n h/help V/version
end

function __fish_pmc_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_pmc_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_pmc_using_subcommand
    set -l cmd (__fish_pmc_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c pmc -n "__fish_pmc_needs_command" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_needs_command" -s V -l version -d 'Print version'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "init" -d 'Write a small workflow to start from, with catalogs and programs'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "run" -d 'Plan a workflow and run it on this machine'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "plan" -d 'Plan a workflow for a cluster, as pmc-plan does'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "explain" -d 'Explain jobs of a plan, or print its figures, as `pmc-plan explain` does'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "resume" -d 'Resume a run that failed or was interrupted'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "status" -d 'Show progress of a run, during or after it'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "analyzer" -d 'Explain failures, root cause first'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "statistics" -d 'Print statistics of a run'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "report" -d 'Write an HTML report: tasks by host, use over time, critical path, failures'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "log" -d 'Print the output of a task, during or after its run'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "attach" -d 'Show the output of running tasks as it comes'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "pmix" -d 'Let tools that are written for PMIx find a running workflow'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "mcp" -d 'Answer programs that speak the Model Context Protocol, on standard input and output'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "unpack" -d 'Make the two files of each attempt from packed output'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "nodes" -d 'Show the hosts of a running workflow, or let one of them go'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "why" -d 'Say why a task of a running workflow waits'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "stack" -d 'Show what the processes of a running task do: functions, files and lines'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "launch" -d 'Start the processes of a parallel program on the hosts of a task, or on this machine'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "kill" -d 'Send a signal to a running task'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "drain" -d 'Let a running workflow start no more tasks'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "submit" -d 'Hand a planned workflow to a running one: both share its nodes'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "serve" -d 'Run tasks that are added while the run goes on'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "add" -d 'Add tasks to a run of pmc serve'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "wait" -d 'Wait for tasks of a run of pmc serve, and print how they end'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "cancel" -d 'End tasks of a run of pmc serve: those that wait do not run'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "simulate" -d 'Estimate how long a plan or a run would take on other nodes'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "checkpoint" -d 'Save and get checkpoints in the scripts of tasks, or look at those of a run'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "message" -d 'In a task: say how far it is; pmc status shows it'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "supervise" -d 'Run the command of a batch script, and decide what follows when it ends'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "pegasus" -d 'Answer as a program of Pegasus does, for the scripts in share/pegasus-shims'
complete -c pmc -n "__fish_pmc_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pmc -n "__fish_pmc_using_subcommand init" -s t -l template -d 'Shape of the workflow' -r -f -a "single\t'One job'
pipeline\t'Four jobs: one splits its input, two run in parallel, one joins'
fan-out\t'A job for each of several input files, and one that merges their results'"
complete -c pmc -n "__fish_pmc_using_subcommand init" -l python -d 'Also write the workflow as a script for Pegasus.api, the Python library of Pegasus'
complete -c pmc -n "__fish_pmc_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand run" -l sleep -d 'Run `sleep` in place of each program of a WfFormat instance, for its recorded time times FACTOR [default: 1]. Without this option, a stand-in reads, computes and writes as much as the program did' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l dir -d 'Directory for runs' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand run" -s O -l output-dir -d 'Directory for outputs [default: that of the site `local` in a site catalog, else output/ in the run\'s directory]' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand run" -l conf -d 'Properties file' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand run" -s D -d 'Set a property; repeatable' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -s s -l site -d 'Site looked up in the catalogs. The jobs run on this machine' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -s I -l input-dir -d 'Directory whose files are inputs, by their relative paths; repeatable' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand run" -s t -l transformations-dir -d 'Directory whose executable files are transformations' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand run" -l cleanup -d 'When to remove files from scratch' -r -f -a "none\t'Never'
leaf\t'All at the end'
inplace\t'Each after its last use'"
complete -c pmc -n "__fish_pmc_using_subcommand run" -l hosts -d 'Run the tasks on these hosts, as in n[1-4,7],x, through ssh without a password, instead of on this machine. They share its directories, and the programs are at the same place' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -s w -s j -l workers -d 'Maximum tasks running at the same time, with --hosts on each of them [default: number of CPUs]' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l host-memory -d 'Memory for tasks, in MiB [default: memory of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l host-cpus -d 'CPUs for tasks [default: CPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l host-gpus -d 'GPUs for tasks [default: GPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l more-memory -d 'Let tasks request FACTOR times their memory after running out of it; needs attempts (--tries)' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l tries -d 'Maximum attempts per task' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -s m -l max-failures -d 'Start no more tasks after N failures [default: no limit]' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l packed-output -d 'Write the output of tasks to a few files with indexes instead of two files for each attempt' -r -f -a "auto\t'If the DAG has more than 10,000 tasks and the plan asks for no notifications'
always\t'Always'
never\t'Never; a run that has packs already goes on in packs'"
complete -c pmc -n "__fish_pmc_using_subcommand run" -l on-end -d 'Command for the shell at the end of the run, however it ends. PMC_RESULT is success, failure or interrupted; PMC_EXIT_CODE, PMC_WORKFLOW, PMC_RUN_DIR, PMC_SUBMIT_DIR, PMC_TASKS, PMC_TASKS_DONE and PMC_TASKS_FAILED say more' -r
complete -c pmc -n "__fish_pmc_using_subcommand run" -l dry-run -d 'Plan without running: print jobs by kind, levels, files to stage, and the estimated time'
complete -c pmc -n "__fish_pmc_using_subcommand run" -l no-check -d 'Do not check before the run that programs and local inputs exist'
complete -c pmc -n "__fish_pmc_using_subcommand run" -l strict-limits -d 'End tasks that use more memory than they request'
complete -c pmc -n "__fish_pmc_using_subcommand run" -s k -l keep-going -d 'Run everything that does not depend on a failed task; the default'
complete -c pmc -n "__fish_pmc_using_subcommand run" -l stampede -d 'Write the database for statistics, analyzer and dashboard during the run'
complete -c pmc -n "__fish_pmc_using_subcommand run" -s v -l verbose -d 'Report the end of every task; twice: also the planner\'s decisions and the executor\'s log'
complete -c pmc -n "__fish_pmc_using_subcommand run" -s q -l quiet -d 'Print no progress, and no summary unless something failed'
complete -c pmc -n "__fish_pmc_using_subcommand run" -l json -d 'Print the summary as JSON'
complete -c pmc -n "__fish_pmc_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l rerun -d 'Run these jobs again: names of tasks, or ids in the workflow. What is missing for them is made again' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l hosts -d 'Run the tasks on these hosts, as in n[1-4,7],x, through ssh without a password, instead of on this machine. They share its directories, and the programs are at the same place' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s w -s j -l workers -d 'Maximum tasks running at the same time, with --hosts on each of them [default: number of CPUs]' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l host-memory -d 'Memory for tasks, in MiB [default: memory of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l host-cpus -d 'CPUs for tasks [default: CPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l host-gpus -d 'GPUs for tasks [default: GPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l more-memory -d 'Let tasks request FACTOR times their memory after running out of it; needs attempts (--tries)' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l tries -d 'Maximum attempts per task' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s m -l max-failures -d 'Start no more tasks after N failures [default: no limit]' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l packed-output -d 'Write the output of tasks to a few files with indexes instead of two files for each attempt' -r -f -a "auto\t'If the DAG has more than 10,000 tasks and the plan asks for no notifications'
always\t'Always'
never\t'Never; a run that has packs already goes on in packs'"
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l on-end -d 'Command for the shell at the end of the run, however it ends. PMC_RESULT is success, failure or interrupted; PMC_EXIT_CODE, PMC_WORKFLOW, PMC_RUN_DIR, PMC_SUBMIT_DIR, PMC_TASKS, PMC_TASKS_DONE and PMC_TASKS_FAILED say more' -r
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l replan -d 'Plan again first, and keep what is done and has not changed: workflow, catalogs, properties, programs, inputs'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l with-dependents -d 'With --rerun: also run again what depends on the jobs'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l here -d 'Run on this machine, even if the plan is for a batch system'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l accept-incomplete -d 'If the end of the DAG file is missing, run the tasks that it has. Without this option, such a plan is refused'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l strict-limits -d 'End tasks that use more memory than they request'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s k -l keep-going -d 'Run everything that does not depend on a failed task; the default'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l stampede -d 'Write the database for statistics, analyzer and dashboard during the run'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s v -l verbose -d 'Report the end of every task; twice: also the planner\'s decisions and the executor\'s log'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s q -l quiet -d 'Print no progress, and no summary unless something failed'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -l json -d 'Print the summary as JSON'
complete -c pmc -n "__fish_pmc_using_subcommand resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand status" -s n -l lines -d 'Maximum running and failed tasks to list' -r
complete -c pmc -n "__fish_pmc_using_subcommand status" -s w -l watch -d 'Refresh until the run ends. Without a terminal: print failures at once and progress every 10 seconds'
complete -c pmc -n "__fish_pmc_using_subcommand status" -l json -d 'Print JSON; with --watch one object per line'
complete -c pmc -n "__fish_pmc_using_subcommand status" -l openmetrics -d 'Print metrics in the text format of OpenMetrics, which Prometheus and others read'
complete -c pmc -n "__fish_pmc_using_subcommand status" -s q -l quiet -d 'Print nothing; the exit code is the status. With --watch: wait for the end of the run'
complete -c pmc -n "__fish_pmc_using_subcommand status" -l data -d 'Add what jobs without a shared file system have moved so far, and where their time went'
complete -c pmc -n "__fish_pmc_using_subcommand status" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand analyzer" -s n -l causes -d 'Maximum causes to explain in full' -r
complete -c pmc -n "__fish_pmc_using_subcommand analyzer" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand analyzer" -s q -l quiet -d 'Print nothing; the exit code says whether something failed'
complete -c pmc -n "__fish_pmc_using_subcommand analyzer" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -s s -l sections -d 'Sections to print, separated by commas' -r -f -a "summary\t'Counts of tasks and jobs, total times'
workflow\t'The same per workflow'
jobs\t'Every attempt of every job'
breakdown\t'By transformation'
time\t'By day or hour, and by host'
integrity\t'Checksums'
hosts\t'Use of hosts'
data\t'Stage-in, run and stage-out time and bytes, without a shared file system'
checkpoints\t'What tasks have saved, and what that has cost'
accounting\t'What the batch jobs have cost'
all\t'All sections'"
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -s t -l time -d 'Time unit of the section `time`' -r -f -a "day\t'Days, UTC'
hour\t'Hours, UTC'"
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -s o -l output -d 'Write one file per section into this directory, with the file names of pegasus-statistics' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -l csv -d 'Print CSV with the columns of pegasus-statistics'
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand statistics" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand report" -s o -l output -d 'HTML file to write [default: report.html, unless --ro-crate or --wfformat is given]' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand report" -l trace -d 'Also write a trace for chrome://tracing and Perfetto' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand report" -l ro-crate -d 'Write provenance as a Workflow Run RO-Crate into this new directory: workflow, inputs, outputs, and each execution of a program' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand report" -l wfformat -d 'Write workflow and execution as an instance of WfFormat 1.6, for the tools of WfCommons' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand report" -s q -l quiet -d 'Do not print the names of the files'
complete -c pmc -n "__fish_pmc_using_subcommand report" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand log" -l attempt -d 'Number of the attempt, counted from 1 over all runs of the plan [default: the latest]' -r
complete -c pmc -n "__fish_pmc_using_subcommand log" -s f -l follow -d 'Go on until the attempt has ended. Waits for the start of a task that has not started'
complete -c pmc -n "__fish_pmc_using_subcommand log" -l stdout -d 'Print standard output only'
complete -c pmc -n "__fish_pmc_using_subcommand log" -l stderr -d 'Print standard error only, to standard output'
complete -c pmc -n "__fish_pmc_using_subcommand log" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l transformation -d 'Tasks of a transformation; those that start later are joined' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l host -d 'Tasks on a host; those that start there later are joined' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l tail -d 'Tasks, by name or pattern. With --redirect, those that start from now on need no option, and are redirected from the first byte. May be repeated' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l buffer-size -d 'Bytes of a stream that may wait for pmc' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l buffer-time -d 'Milliseconds for which a full buffer may hold up the task until half of it is free' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l on-overflow -d 'What happens then' -r -f -a "file\t'The rest goes to the file'
drop-oldest\t'The older half of the buffer is lost'
drop-newest\t'What comes is lost'"
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l to -d 'Task that gets the input, or all: those that run now. May be repeated [default: the tasks that are named]' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l from -d 'Of tasks that run already, show all (start), the last N lines of each stream (-N), or only what comes (now)' -r
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l timestamp -d 'Begin each line with the time at which pmc read it; with --redirect, `source` is the time at which the worker did' -r -f -a "received\t'When this program read it'
source\t'When the worker read it'"
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l all -d 'All tasks; those that start later are joined'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l running -d 'The tasks that run now'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l redirect -d 'Get the output instead of the files of the tasks; when this ends, it goes there again. Tasks need the task option --io relay, or --tail'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l stdin -d 'Push the standard input of pmc to tasks that have the task option --stdin push'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l complete -d 'At the end of the input, end that of the tasks, too. Without it, other tools may go on'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l stdout -d 'Show standard output only'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l stderr -d 'Show standard error only, on standard output'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l tag -d 'Begin each line with [TASK.ATTEMPT@HOST,STREAM]'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l xml -d 'Print an XML document with an element for each line'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -l json -d 'Print a line of JSON for each line'
complete -c pmc -n "__fish_pmc_using_subcommand attach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand pmix" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand mcp" -l allow-control -d 'Offer tools that change the course of runs, too: kill and drain'
complete -c pmc -n "__fish_pmc_using_subcommand mcp" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand unpack" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l drain -d 'Start no more tasks on this host, and let its agent go when the running ones have ended' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l reserve -d 'Start only tasks on these hosts that name them, and let the running ones go on: a name, or `n[1-3,7]`' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l unreserve -d 'Start all tasks on these hosts again' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l gone -d 'This host is lost: go on without it, and run its tasks elsewhere once they must have ended there' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l ping -d 'Say which of these hosts do not answer, and exit with 1 if there are any: a name, or `n[1-3,7]`' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l of -d 'Only the hosts on which this task runs' -r
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand nodes" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand why" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand why" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand stack" -l ranks -d 'Only these ranks of an MPI program, such as 0-3,7' -r
complete -c pmc -n "__fish_pmc_using_subcommand stack" -l threads -d 'Show all threads, not only the first one of each process'
complete -c pmc -n "__fish_pmc_using_subcommand stack" -l full -d 'Show also what a call of MPI does inside its library, and what has called main'
complete -c pmc -n "__fish_pmc_using_subcommand stack" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand stack" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s n -l ranks -d 'Number of all ranks' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s N -l nodes -d 'Number of hosts; with -n, the ranks are spread over them' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l ranks-per-node -d 'Most ranks of a host' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l on -d 'Only on these hosts, such as n[1-4,7]' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s c -l cpus -d 'CPUs of a rank, in a batch job' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s m -l memory -d 'MiB of memory of a rank, in a batch job' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l run -d 'In this run of pmc serve, in place of a batch job' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l linger -d 'In a batch job, seconds that the session lives after its last launch' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l pmi -d 'How ranks find each other' -r -f -a "auto\t'PMIx if a program needs Open MPI, else 1'
1\t'PMI-1: MPICH, Intel MPI, MVAPICH'
pmix\t'PMIx: Open MPI'
none\t'Not at all'"
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l bind -d 'Which CPUs ranks get: each its part of those of the task, in order, or all of them' -r -f -a "auto\t'As cpus if the task has CPUs of its own'
cpus\t'Each rank has CPUs of its own'
none\t'All ranks of a host have the same'"
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l stdin -d 'Which ranks get the standard input' -r -f -a "0\t'Rank 0'
all\t'Each rank'
none\t'No rank'"
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l output -d 'Write output into files; %r is the rank' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l wait -d 'Seconds between SIGTERM and SIGKILL for the others if a rank has failed' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l load-tries -d 'How often ranks are started on other hosts of the task if some of the chosen ones cannot start them' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l bcast -d 'Send programs to hosts that do not see them (auto, also without a value), or to all hosts' -r -f -a "auto\t'Those that some host does not see, to those hosts'
always\t'All programs, to all hosts'
never\t'No program'"
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l files -d 'With --bcast, send these files, too: ranks find them in the directory PMC_LAUNCH_FILES' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l report -d 'Write host, process and end of each rank into a file, a JSON object a line' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l set -d 'Set variables by which ranks of other systems find each other' -r -f -a "torch\t'PyTorch: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT'"
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l strace -d 'Write the system calls of ranks into files strace.JOB.RANK in this directory, by strace; JOB is the number of the process of this program' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l strace-options -d 'Further options of strace, such as -f -e trace=file' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l strace-ranks -d 'Ranks whose system calls are written, such as 0-3,7; * for all' -r
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l immediate -d 'In a batch job, give up if other launches hold what this one needs'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l tag -d 'Write the rank before each line of output'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l timestamp -d 'Write the time before each line of output'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l keep-going -d 'Go on if a rank has failed'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s g -l trace -d 'Say in which function, file and line ranks were that a signal has ended'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l send-libs -d 'With --bcast, send libraries, too: those that the loader of a program finds outside /lib and /usr'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l timing -d 'Say how long each step took'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l dry-run -d 'Say where each rank would run, and start nothing'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -l hold -d 'Stop ranks before their first instruction until Enter is pressed, so that debuggers can be attached'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s q -l quiet -d 'Say nothing of ranks that have ended well'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand launch" -s V -l version -d 'Print version'
complete -c pmc -n "__fish_pmc_using_subcommand kill" -l host -d 'All tasks that run on this host, also those that hold other hosts at the same time' -r
complete -c pmc -n "__fish_pmc_using_subcommand kill" -s s -l signal -d 'Signal, by name or number' -r
complete -c pmc -n "__fish_pmc_using_subcommand kill" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand drain" -l in -d 'Go on for this time first: seconds, or a number with s, m or h' -r
complete -c pmc -n "__fish_pmc_using_subcommand drain" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand submit" -l run -d 'The same' -r -F
complete -c pmc -n "__fish_pmc_using_subcommand submit" -l weight -d 'Its share of the slots while both have tasks to start, compared with the running workflow, which has 1; from 0.01 to 100' -r
complete -c pmc -n "__fish_pmc_using_subcommand submit" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l idle-limit -d 'End when there was nothing to do for this time: seconds, or a number with s, m or h' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l agents -d 'Start this number of agents, one on each node of the batch job, as --launch says' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l launch -d 'How agents are started: srun, mpiexec, flux, pbsdsh, blaunch, or a command that the agent\'s follows' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l master-timeout -d 'How long the agents go on with their tasks, and wait for this run to be served again, if this process is killed: seconds, or a number with s, m or h [default: 10m]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l hosts -d 'Run the tasks on these hosts, as in n[1-4,7],x, through ssh without a password, instead of on this machine. They share its directories, and the programs are at the same place' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -s w -s j -l workers -d 'Maximum tasks running at the same time, with --hosts on each of them [default: number of CPUs]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l host-memory -d 'Memory for tasks, in MiB [default: memory of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l host-cpus -d 'CPUs for tasks [default: CPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l host-gpus -d 'GPUs for tasks [default: GPUs of the machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l more-memory -d 'Let tasks request FACTOR times their memory after running out of it; needs attempts (--tries)' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l tries -d 'Maximum attempts per task' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -s m -l max-failures -d 'Start no more tasks after N failures [default: no limit]' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l packed-output -d 'Write the output of tasks to a few files with indexes instead of two files for each attempt' -r -f -a "auto\t'If the DAG has more than 10,000 tasks and the plan asks for no notifications'
always\t'Always'
never\t'Never; a run that has packs already goes on in packs'"
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l on-end -d 'Command for the shell at the end of the run, however it ends. PMC_RESULT is success, failure or interrupted; PMC_EXIT_CODE, PMC_WORKFLOW, PMC_RUN_DIR, PMC_SUBMIT_DIR, PMC_TASKS, PMC_TASKS_DONE and PMC_TASKS_FAILED say more' -r
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l stop -d 'Let the run that goes on there take no more tasks, and end when all have ended'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -s q -l quiet -d 'Print nothing unless something is wrong'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l strict-limits -d 'End tasks that use more memory than they request'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -s k -l keep-going -d 'Run everything that does not depend on a failed task; the default'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -l stampede -d 'Write the database for statistics, analyzer and dashboard during the run'
complete -c pmc -n "__fish_pmc_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc -n "__fish_pmc_using_subcommand add" -s c -l cpus -d 'CPUs that the task requests [default: 1]' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s m -l memory -d 'Memory that it requests, in MiB' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s g -l gpus -d 'GPUs that it requests' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s N -l nodes -d 'Hosts that it holds at once' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -l label -d 'Its name [default: its number in the run]' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -l after -d 'Tasks that must be done before' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -l tries -d 'Maximum attempts' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s p -l priority -d 'Priority: of the tasks that are ready, those with the highest start first' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s e -l expected-seconds -d 'How long it is expected to run, in seconds' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -l name -d 'Kind of task, for statistics [default: the name of its program]' -r
complete -c pmc -n "__fish_pmc_using_subcommand add" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand wait" -l follow -d 'Print the ends of all tasks from the start of the run on, until the run ends'
complete -c pmc -n "__fish_pmc_using_subcommand wait" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand cancel" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l nodes -d 'Numbers of nodes to simulate, separated by commas [default: 1, 2, 4… while that makes the run shorter]' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l walltime -d 'Mark the batch job that ends within this time and needs the fewest node hours' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l loss-rate -d 'Mean number of losses of one node in an hour, such as 0.01' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l replacement -d 'Time until another node takes the place of a lost one' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l seed -d 'Chooses the moments of the losses' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l checkpoint-cost -d 'Let all tasks save their state, which takes this time; what a lost node ran goes on from there' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l checkpoint-every -d 'Time from one save to the next, or `auto` for the interval that costs least at the rate of losses' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l set -d 'Run time of the tasks of a transformation; `*` stands for all transformations that have not run' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l node-slots -d 'Slots of a node [default: those of the largest node of the run, else the CPUs]' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l node-cpus -d 'CPUs of a node [default: those of the largest node of the run, else of this machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l node-memory -d 'Memory of a node [default: that of the largest node of the run, else of this machine]' -r
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand simulate" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "put" -d 'In a task: save files as the next series of its checkpoints'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "get" -d 'In a task: get a file of the newest complete series of its earlier attempts'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "due" -d 'In a task: is it time to save? Before the end of the run, and when enough time has passed'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "drain" -d 'In a task: was the run asked to drain?'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "ls" -d 'List the checkpoints of a run'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "verify" -d 'Read all checkpoints of a run, and say which are damaged; these will not be used'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "recover" -d 'Before a run goes on: check the series from which each task will go on, and say which it is'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "rm" -d 'Remove the checkpoints of a run that does not go on: its tasks begin again'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and not __fish_seen_subcommand_from put get due drain ls verify recover rm help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from put" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from due" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from ls" -l json -d 'Print JSON'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from recover" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from rm" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "put" -d 'In a task: save files as the next series of its checkpoints'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "get" -d 'In a task: get a file of the newest complete series of its earlier attempts'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "due" -d 'In a task: is it time to save? Before the end of the run, and when enough time has passed'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "drain" -d 'In a task: was the run asked to drain?'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "ls" -d 'List the checkpoints of a run'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "verify" -d 'Read all checkpoints of a run, and say which are damaged; these will not be used'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "recover" -d 'Before a run goes on: check the series from which each task will go on, and say which it is'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "rm" -d 'Remove the checkpoints of a run that does not go on: its tasks begin again'
complete -c pmc -n "__fish_pmc_using_subcommand checkpoint; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pmc -n "__fish_pmc_using_subcommand message" -l mail -d 'Send it to this address, too: at most one message a minute' -r
complete -c pmc -n "__fish_pmc_using_subcommand message" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l resubmit -d 'Number of further batch jobs that may follow the first one' -r
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l starts -d 'Starts of the command in this job, if it crashes; at most 10' -r
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l minutes -d 'Minutes of the job, if the batch system does not say how many are left' -r
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l drain-after -d 'Ask the run to drain after this time' -r
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l job -d 'The batch job that `--is-restart` is about [default: that of this process]' -r
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l matrix -d 'Print what is done after each end, and do nothing'
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l successor -d 'The first node of this job was lost: go on with the command in the list of batch jobs'
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l is-restart -d 'Say whether this is a restart, and do nothing else: exit with 1 if the task, or else the workflow in an earlier job, has begun before, with 0 if not'
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -l init -d 'Note that the workflow has begun in this job, and do nothing else'
complete -c pmc -n "__fish_pmc_using_subcommand supervise" -s h -l help -d 'Print help'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "init" -d 'Write a small workflow to start from, with catalogs and programs'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "run" -d 'Plan a workflow and run it on this machine'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "plan" -d 'Plan a workflow for a cluster, as pmc-plan does'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "explain" -d 'Explain jobs of a plan, or print its figures, as `pmc-plan explain` does'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "resume" -d 'Resume a run that failed or was interrupted'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "status" -d 'Show progress of a run, during or after it'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "analyzer" -d 'Explain failures, root cause first'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "statistics" -d 'Print statistics of a run'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "report" -d 'Write an HTML report: tasks by host, use over time, critical path, failures'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "log" -d 'Print the output of a task, during or after its run'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "attach" -d 'Show the output of running tasks as it comes'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "pmix" -d 'Let tools that are written for PMIx find a running workflow'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "mcp" -d 'Answer programs that speak the Model Context Protocol, on standard input and output'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "unpack" -d 'Make the two files of each attempt from packed output'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "nodes" -d 'Show the hosts of a running workflow, or let one of them go'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "why" -d 'Say why a task of a running workflow waits'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "stack" -d 'Show what the processes of a running task do: functions, files and lines'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "launch" -d 'Start the processes of a parallel program on the hosts of a task, or on this machine'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "kill" -d 'Send a signal to a running task'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "drain" -d 'Let a running workflow start no more tasks'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "submit" -d 'Hand a planned workflow to a running one: both share its nodes'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "serve" -d 'Run tasks that are added while the run goes on'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "add" -d 'Add tasks to a run of pmc serve'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "wait" -d 'Wait for tasks of a run of pmc serve, and print how they end'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "cancel" -d 'End tasks of a run of pmc serve: those that wait do not run'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "simulate" -d 'Estimate how long a plan or a run would take on other nodes'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "checkpoint" -d 'Save and get checkpoints in the scripts of tasks, or look at those of a run'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "message" -d 'In a task: say how far it is; pmc status shows it'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "supervise" -d 'Run the command of a batch script, and decide what follows when it ends'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "pegasus" -d 'Answer as a program of Pegasus does, for the scripts in share/pegasus-shims'
complete -c pmc -n "__fish_pmc_using_subcommand help; and not __fish_seen_subcommand_from init run plan explain resume status analyzer statistics report log attach pmix mcp unpack nodes why stack launch kill drain submit serve add wait cancel simulate checkpoint message supervise pegasus help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "put" -d 'In a task: save files as the next series of its checkpoints'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "get" -d 'In a task: get a file of the newest complete series of its earlier attempts'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "due" -d 'In a task: is it time to save? Before the end of the run, and when enough time has passed'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "drain" -d 'In a task: was the run asked to drain?'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "ls" -d 'List the checkpoints of a run'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "verify" -d 'Read all checkpoints of a run, and say which are damaged; these will not be used'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "recover" -d 'Before a run goes on: check the series from which each task will go on, and say which it is'
complete -c pmc -n "__fish_pmc_using_subcommand help; and __fish_seen_subcommand_from checkpoint" -f -a "rm" -d 'Remove the checkpoints of a run that does not go on: its tasks begin again'
