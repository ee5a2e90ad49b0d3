# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_pmc_plan_global_optspecs
    string join \n d/dax= conf= D= X= s/sites= seed= staging-site= o/output-sites= O/output-dir= I/input-dir= t/transformations-dir= c/cache= inherited-rc-files= R/reuse= f/force force-replan C/cluster= cleanup= n/nocleanup dir= relative-dir= relative-submit-dir= r/randomdir= b/basename= j/job-prefix= S/submit F/forward= rescue= z/deferred m/output-map= dry-run explain= dot= svg= abstract-dot= abstract-svg= J/json diagnostics= v/verbose q/quiet V/version batch= nodes= ntasks-per-node= walltime= drain= node-cpus= node-memory= queue= account= launcher= template-dir= h/help
end

function __fish_pmc_plan_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_pmc_plan_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_pmc_plan_using_subcommand
    set -l cmd (__fish_pmc_plan_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s d -l dax -d 'The workflow, under the option\'s old name' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l conf -d 'Properties file' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s D -d 'Sets a property' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s X -d 'Ignored: an option of the Java virtual machine' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s s -l sites -d 'Candidate execution sites, best first; * for all but local' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l seed -d 'Seed for the site selectors Random and Group; `random` chooses another one each time' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l staging-site -d 'Staging site; with a shared file system it must be the execution site' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s o -l output-sites -d 'Sites that receive outputs; without this option and --output-dir, outputs stay in the work directory' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s O -l output-dir -d 'Directory for outputs' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s I -l input-dir -d 'Directories whose files are inputs' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s t -l transformations-dir -d 'Directory whose files are programs to stage' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s c -l cache -d 'Replica files that override all other locations' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l inherited-rc-files -d 'Replica files with lower priority than locations inside the workflow' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s R -l reuse -d 'Submit directories of earlier runs whose registered outputs are reused' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s C -l cluster -d 'Clustering techniques: horizontal, label, whole' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l cleanup -d 'When files are removed from the work directory' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l dir -d 'Base of submit directories [default: the working directory]' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l relative-dir -d 'Replaces USER/pegasus/LABEL/runNNNN below the base directories of submit and work files' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l relative-submit-dir -d 'Same as --relative-dir, for the submit directory only' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s r -l randomdir -d 'Name of the work directory; without a value, a new one each time' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s b -l basename -d 'Prefix of the workflow\'s files [default: LABEL-INDEX]' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s j -l job-prefix -d 'Prefix of job names' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s F -l forward -d 'No effect: there is no pegasus-run to hand options to' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l rescue -d 'No effect: a resumed run always uses its rescue file' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s m -l output-map -d 'With --deferred: where the outputs go, a replica catalog as text' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l explain -d 'Plans without writing; explains a job. For an existing plan: pmc-plan explain JOB DIR' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l dot -d 'Draws the executable workflow for graphviz' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l svg -d 'Draws the executable workflow as SVG; more than 300 jobs are drawn in groups' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l abstract-dot -d 'Draws the abstract workflow for graphviz' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l abstract-svg -d 'Draws the abstract workflow as SVG' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l diagnostics -d 'Format of errors and warnings on standard error' -r -f -a "text\t'For people'
json\t'One JSON object per line'"
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l batch -d 'Schedulers to write scripts for beside the .pbs for Torque and the .sbatch for Slurm, the preferred one first: torque, slurm, pbspro (replaces the .pbs), lsf, flux, cobalt' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l nodes -d 'Batch scripts: nodes' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l ntasks-per-node -l ppn -d 'Batch scripts: processes per node [default: one for each core; 2 if the scheduler is not Slurm and --node-cpus is not given]' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l walltime -d 'Batch scripts: wall time, minutes or [D-]HH:MM[:SS]' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l drain -d 'Batch scripts: time before the limit in which no task starts, minutes or HH:MM; 0 for none' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l node-cpus -d 'Batch scripts: CPUs of a node; tasks that ask for more are refused' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l node-memory -d 'Batch scripts: memory of a node, MiB or with a unit as in 64G; tasks that ask for more are refused. 0: all, with Slurm' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l queue -l partition -d 'Batch scripts: queue or partition' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l account -l project -d 'Batch scripts: account or project' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l launcher -d 'Batch scripts: mpiexec, mpirun, srun, another command, or none for a run on one node without MPI' -r
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l template-dir -d 'Batch scripts: directory with templates (pbs.j2, sbatch.j2, run.j2, …) that replace the built-in ones' -r -F
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s f -l force -d 'Runs every job, even if its outputs exist'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l force-replan -d 'With --deferred: plans again even if there is a plan of the same inputs'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s n -l nocleanup -d 'Same as --cleanup none'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s S -l submit -d 'Submits the batch script to the scheduler: that of --batch, else the one found on PATH'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s z -l deferred -d 'The workflow is a sub-workflow of one that runs. Its plan goes into DIR.NNN behind the link DIR; a plan of the same inputs is kept'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -l dry-run -d 'Plans without writing; prints jobs by kind, levels, files to stage, and the estimated time'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s J -l json -d 'Prints the result as JSON'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s v -l verbose -d 'Prints more; repeat for even more'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s q -l quiet -d 'Prints errors only'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s V -l version -d 'Prints the version'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -s h -l help -d 'Print help'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -a "explain" -d 'Explains jobs of a plan, or prints its figures'
complete -c pmc-plan -n "__fish_pmc_plan_needs_command" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pmc-plan -n "__fish_pmc_plan_using_subcommand explain" -s h -l help -d 'Print help'
complete -c pmc-plan -n "__fish_pmc_plan_using_subcommand help; and not __fish_seen_subcommand_from explain help" -f -a "explain" -d 'Explains jobs of a plan, or prints its figures'
complete -c pmc-plan -n "__fish_pmc_plan_using_subcommand help; and not __fish_seen_subcommand_from explain help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
