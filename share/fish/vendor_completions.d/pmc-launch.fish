complete -c pmc-launch -s n -l ranks -d 'Number of all ranks' -r
complete -c pmc-launch -s N -l nodes -d 'Number of hosts; with -n, the ranks are spread over them' -r
complete -c pmc-launch -l ranks-per-node -d 'Most ranks of a host' -r
complete -c pmc-launch -l on -d 'Only on these hosts, such as n[1-4,7]' -r
complete -c pmc-launch -s c -l cpus -d 'CPUs of a rank, in a batch job' -r
complete -c pmc-launch -s m -l memory -d 'MiB of memory of a rank, in a batch job' -r
complete -c pmc-launch -l run -d 'In this run of pmc serve, in place of a batch job' -r -F
complete -c pmc-launch -l linger -d 'In a batch job, seconds that the session lives after its last launch' -r
complete -c pmc-launch -l pmi -d 'How ranks find each other' -r -f -a "auto\t'PMIx if a program needs Open MPI, else 1'
1\t'PMI-1: MPICH, Intel MPI, MVAPICH'
pmix\t'PMIx: Open MPI'
none\t'Not at all'"
complete -c pmc-launch -l bind -d 'Which CPUs ranks get: each its part of those of the task, in order, or all of them' -r -f -a "auto\t'As cpus if the task has CPUs of its own'
cpus\t'Each rank has CPUs of its own'
none\t'All ranks of a host have the same'"
complete -c pmc-launch -l stdin -d 'Which ranks get the standard input' -r -f -a "0\t'Rank 0'
all\t'Each rank'
none\t'No rank'"
complete -c pmc-launch -l output -d 'Write output into files; %r is the rank' -r
complete -c pmc-launch -l wait -d 'Seconds between SIGTERM and SIGKILL for the others if a rank has failed' -r
complete -c pmc-launch -l load-tries -d 'How often ranks are started on other hosts of the task if some of the chosen ones cannot start them' -r
complete -c pmc-launch -l bcast -d 'Send programs to hosts that do not see them (auto, also without a value), or to all hosts' -r -f -a "auto\t'Those that some host does not see, to those hosts'
always\t'All programs, to all hosts'
never\t'No program'"
complete -c pmc-launch -l files -d 'With --bcast, send these files, too: ranks find them in the directory PMC_LAUNCH_FILES' -r -F
complete -c pmc-launch -l report -d 'Write host, process and end of each rank into a file, a JSON object a line' -r -F
complete -c pmc-launch -l set -d 'Set variables by which ranks of other systems find each other' -r -f -a "torch\t'PyTorch: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT'"
complete -c pmc-launch -l strace -d 'Write the system calls of ranks into files strace.JOB.RANK in this directory, by strace; JOB is the number of the process of this program' -r -F
complete -c pmc-launch -l strace-options -d 'Further options of strace, such as -f -e trace=file' -r
complete -c pmc-launch -l strace-ranks -d 'Ranks whose system calls are written, such as 0-3,7; * for all' -r
complete -c pmc-launch -l immediate -d 'In a batch job, give up if other launches hold what this one needs'
complete -c pmc-launch -l tag -d 'Write the rank before each line of output'
complete -c pmc-launch -l timestamp -d 'Write the time before each line of output'
complete -c pmc-launch -l keep-going -d 'Go on if a rank has failed'
complete -c pmc-launch -s g -l trace -d 'Say in which function, file and line ranks were that a signal has ended'
complete -c pmc-launch -l send-libs -d 'With --bcast, send libraries, too: those that the loader of a program finds outside /lib and /usr'
complete -c pmc-launch -l timing -d 'Say how long each step took'
complete -c pmc-launch -l dry-run -d 'Say where each rank would run, and start nothing'
complete -c pmc-launch -l hold -d 'Stop ranks before their first instruction until Enter is pressed, so that debuggers can be attached'
complete -c pmc-launch -s q -l quiet -d 'Say nothing of ranks that have ended well'
complete -c pmc-launch -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc-launch -s V -l version -d 'Print version'
