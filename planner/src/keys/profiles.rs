//! The profile keys, by namespace.

use crate::profiles::Namespace;

use super::{CONDOR, Key, off, on, on_for};

const CREDENTIALS: &str = "credentials are not copied; profiles of the namespace env name their files";
const DAGMAN: &str = "there is no DAGMan, the executor runs the jobs";
const GLOBUS: &str = "there is no Globus, the executor starts the tasks";
const BATCH_JOB: &str =
    "all tasks run in one batch job, which has its queue and account before any of them fails";
const EXPRESSION: &str = "expression for the request of the next attempt after one that failed: task option `--request-expression`";
const SCRIPTS: &str = "there is no DAGMan that starts scripts before and after jobs";

/// The keys of each namespace, sorted by name. Old names stand in [`OLD_KEYS`](crate::profiles).
pub const PROFILES: &[(Namespace, &[Key])] = &[
    (Namespace::Pegasus, PEGASUS_KEYS),
    (Namespace::Env, ENV_KEYS),
    (Namespace::Dagman, DAGMAN_KEYS),
    (Namespace::Condor, CONDOR_KEYS),
    (Namespace::Globus, GLOBUS_KEYS),
    (Namespace::Selector, SELECTOR_KEYS),
    (Namespace::Metadata, METADATA_KEYS),
    (Namespace::Stat, STAT_KEYS),
];

#[rustfmt::skip]
const PEGASUS_KEYS: &[Key] = &[
    off("*.expr", "", "there is no such expression"),
    on("auxillary.local",
        "the file system of the site is that of this machine, so its transfer jobs may run here"),
    on("batch.launcher", "command that starts the processes of the batch job, for a site"),
    off("boto_config", "", CREDENTIALS),
    off("chain.stagein", "", "there is no refiner Chain"),
    off("change.dir", "true", "jobs always start in the work directory of their site"),
    on("checkpoint.time", "minutes until kickstart sends SIGTERM"),
    on("cleanup.clusters.num", "clean-up jobs on a level, for a site"),
    on("cleanup.clusters.size", "files that one clean-up job removes, for a site"),
    off("cluster.arguments", "", "job.aggregator.arguments sets the arguments of clusters"),
    on("clusters.maxruntime", "run time of a cluster in seconds, for the technique `runtime`"),
    on("clusters.num", "clusters on a level"),
    on("clusters.size", "jobs in a cluster"),
    off("condor.arguments.quote", "", CONDOR)
        .htcondor("false: the arguments stand in the submit description as they were written"),
    on("container.arguments", "options for the program that runs the container of the job"),
    on("container.launcher", "command before that program"),
    on("container.launcher.arguments", "its arguments"),
    on("cores", "task option `-c`, the number of CPUs; default 1"),
    on("cores.expr", EXPRESSION),
    on("create.dir", "kickstart creates the directory in which the job works"),
    on("data.configuration", "how the job gets its files: sharedfs, nonsharedfs, condorio"),
    off("diskspace", "",
        "tasks write into the work directory, which they share and no host owns; the clean-up strategy constraint limits \
        its use")
        .htcondor("MiB of disk that the job needs: command request_disk"),
    on("diskspace.expr", "a value for the other expressions: task option `--request-expression`"),
    on("enable_for_data_reuse", "the job need not run if its outputs exist, with the scope `partial`"),
    on("exitcode.failuremsg",
        "texts, separated by `@`: a job with one of them in its output has failed: task option `--failure-message`"),
    on("exitcode.successmsg",
        "texts, separated by `@`: a job without one of them in its output has failed: task option \
        `--success-message`"),
    on("glite.arguments", "more lines for the head of the batch script"),
    off("glite.arguments.expr", "", BATCH_JOB)
        .htcondor("expression for the next attempt after one that failed"),
    off("googlep12", "", CREDENTIALS),
    on("gpus", "task option `-g`, the number of GPUs"),
    on("gpus.expr", EXPRESSION),
    on_for("gridstart", "kickstart|none|nogridstart", "what starts the program",
        "jobs share the work directory, so pegasus-kickstart starts them"),
    on("gridstart.arguments", "more options of kickstart"),
    on("gridstart.launcher", "command before kickstart"),
    on("gridstart.launcher.arguments", "its arguments"),
    on("gridstart.path", "path of kickstart"),
    on("group", "group of the job, for the site selector Group"),
    off("irodsenvfile", "", CREDENTIALS),
    on("job.aggregator", "program that runs a cluster: seqexec or mpiexec"),
    on("job.aggregator.arguments", "options for that program"),
    on("label", "label of the job, for the technique `label`"),
    on("maxwalltime",
        "minutes after which kickstart ends the program; wall time of the batch job, for a site"),
    on("memory", "task option `-m`, the memory in MiB; default 2048"),
    on("memory.expr", EXPRESSION),
    on("nodes", "nodes of the batch job, for a site; of a job, if more than one: task option `-N`, with `ppn` ranks on each or `cores` ranks in all"),
    on("nosymlink", "inputs are copied also with pegasus.transfer.links"),
    off("pegasus_credentials", "", CREDENTIALS)
        .htcondor("file with credentials for S3 and WebDAV, for a site: it travels with jobs"),
    on("pegasus_lite_env_source", "script of sh that sets the environment of jobs with directories of their own"),
    on("pmc_arguments", "the same as pmc_task_arguments"),
    on("pmc_checkpoint_exit",
        "exit code, usually 85, of a job that has saved its state and is to run again: task option `--checkpoint-exit`"),
    on("pmc_checkpoint_signal",
        "`SIG[@SECONDS]`: the signal at which the program of the job saves its state: task option         `--checkpoint-signal`"),
    on("pmc_more_memory",
        "task option `--more-memory`: factor for the memory of the next attempt after one that ran out of memory"),
    on("pmc_priority", "task option `-p`"),
    on("pmc_request_cpus", "task option `-c`"),
    on("pmc_request_gpus", "task option `-g`"),
    on("pmc_request_memory", "task option `-m`, in MiB"),
    on("pmc_stdin",
        "task option `--stdin`: `push` for input that `pmc attach --stdin` pushes, or a file"),
    on("pmc_task_arguments", "more task options"),
    on("ppn", "processes on each node of the batch job, for a site, if more than one; of a job: its CPUs where no other key says it"),
    on("project", "account of the batch job, for a site"),
    off("project.expr", "", BATCH_JOB).htcondor("expression for the next attempt after one that failed"),
    on("queue", "queue of the batch job, for a site"),
    off("queue.expr", "", BATCH_JOB).htcondor("expression for the next attempt after one that failed"),
    on("relative.submit.dir", "directory of the job's files, for the submit mapper Named"),
    on("runtime", "expected run time in seconds: task option `-e`"),
    on("runtime.expr", "a value for the other expressions: task option `--request-expression`"),
    off("s3cfg", "", CREDENTIALS),
    off("ssh_private_key", "", CREDENTIALS)
        .htcondor("key for scp and sftp, for a site: it travels with jobs"),
    on("stagein.clusters", "stage-in jobs on a level"),
    on("stagein.local.clusters", "those of the stage-in jobs that run on the site `local`"),
    on("stagein.remote.clusters", "those of the stage-in jobs that run on the staging site"),
    on("stageout.clusters", "stage-out jobs on a level"),
    on("stageout.local.clusters", "those of the stage-out jobs that run on the site `local`"),
    on("stageout.remote.clusters", "those of the stage-out jobs that run on the staging site"),
    off("style", "", "it says how HTCondor submits a job; all tasks run in one batch job")
        .htcondor("how HTCondor submits jobs of the site: condor, glite, ssh, condorc"),
    on("tag", "of a job: the entry of `x-tags` of its site whose profiles are laid over those of the site"),
    on("transfer.arguments", "options of pegasus-transfer"),
    on("transfer.lite.arguments", "options of pegasus-transfer in jobs with directories of their own"),
    on("transfer.lite.threads", "parallel transfers in jobs with directories of their own; default 1"),
    off("transfer.proxy", "false", CREDENTIALS),
    on("transfer.threads", "files that pegasus-transfer moves at the same time"),
    off("type", "", "there are no jobs of type decaf"),
    on("wntmp", "directory of the node in which jobs have directories of their own"),
    on("workdir", "work directory of a site; refused for a job"),
    off("x509_user_proxy", "", CREDENTIALS)
        .htcondor("proxy certificate for gsiftp, for a site: it travels with jobs"),
];

#[rustfmt::skip]
const ENV_KEYS: &[Key] = &[
    on("*", "variable of the environment of the job"),
];

#[rustfmt::skip]
const DAGMAN_KEYS: &[Key] = &[
    on("*.maxjobs", "limit on the running tasks of a category, as a property: record MAXJOBS; auxiliary jobs are in \
        the categories stagein, stageout, stageinter, registration, cleanup"),
    on("abort-dag-on",
        "`CODE [RETURN CODE]`: an attempt that ends with CODE ends the run: task option `--abort-on`"),
    on("category", "category of the job, for `*.maxjobs`: task option `--category`"),
    on("dir", "directory to which paths in the DAG of a job of the type condorWorkflow are relative"),
    off("job", "", DAGMAN),
    off("maxidle", "", DAGMAN).htcondor("limit on idle jobs of DAGMan"),
    on("maxjobs", "limit on the running tasks of the workflow, as a property: record `MAXJOBS *`; 0 is none"),
    off("maxpost", "", DAGMAN).htcondor("limit on running scripts after jobs; default 20"),
    off("maxpre", "", DAGMAN).htcondor("limit on running scripts before jobs"),
    off("noop", "", DAGMAN).htcondor("true: the job does not run: keyword NOOP"),
    off("output", "", DAGMAN),
    off("post", "none|pegasus-exitcode", SCRIPTS)
        .htcondor("script after the job: none, pegasus-exitcode (default), or a name for `post.path.*`"),
    off("post.arguments", "", SCRIPTS).htcondor("its arguments, before the name of the output"),
    off("post.path.*", "", SCRIPTS).htcondor("path of the script of that name"),
    off("post.scope", "all|essential", SCRIPTS)
        .htcondor("jobs that have the script: all, essential (not those that register files), none"),
    off("pre", "", SCRIPTS).htcondor("script before the job"),
    off("pre.arguments", "", SCRIPTS).htcondor("its arguments"),
    on("priority", "task option `-p` of jobs without pmc_priority"),
    on("retry", "retries of a failed task: task option `-t` is one more"),
    on("retry.delay", "pause before each retry, `SECONDS[,FACTOR[,MAX]]`: task option `--retry-delay`"),
    off("vars", "", DAGMAN).htcondor("macros of the submit description: record VARS"),
];

#[rustfmt::skip]
const CONDOR_KEYS: &[Key] = &[
    off("*", "", CONDOR)
        .htcondor("command of the submit description; `+NAME` and `My.NAME` are attributes of the job"),
    on("checkpoint_exit_code", "as pegasus::pmc_checkpoint_exit, which takes precedence"),
    on("priority", "order of the job's files in transfer jobs"),
    on("request_cpus", "task option `-c` of jobs without pmc_request_cpus and cores"),
    off("request_disk", "", "tasks write into the work directory, which they share and no host owns")
        .htcondor("disk that the job needs, in KiB, or with a unit"),
    on("request_gpus", "task option `-g` of jobs without pmc_request_gpus and gpus"),
    on("request_memory",
        "task option `-m` of jobs without pmc_request_memory and memory; MiB, or with K, M, G, T"),
];

#[rustfmt::skip]
const GLOBUS_KEYS: &[Key] = &[
    off("arch", "", GLOBUS),
    off("arguments", "", GLOBUS),
    on("count", "task option `-c` where no other key says it"),
    on("directory", "directory in which the job works"),
    off("dryrun", "", GLOBUS),
    off("environment", "", GLOBUS),
    off("executable", "", GLOBUS),
    off("grammyjob", "", GLOBUS),
    on("hostcount", "as pegasus::nodes, which takes precedence"),
    on_for("jobtype", "single|mpi", "a job of one process, or of several, with `hostcount`, `xcount` and `count`", GLOBUS),
    off("maxcputime", "", GLOBUS),
    on("maxmemory", "task option `-m` in MiB where no other key says it"),
    off("maxtime", "", GLOBUS),
    on("maxwalltime", "minutes, as pegasus::maxwalltime, which takes precedence"),
    off("minmemory", "", GLOBUS),
    on("project", "account of the batch job, for a site without pegasus::project"),
    on("queue", "queue of the batch job, for a site without pegasus::queue"),
    off("rsl", "", GLOBUS),
    off("stderr", "", GLOBUS),
    off("stdin", "", GLOBUS),
    off("stdout", "", GLOBUS),
    on("totalmemory", "task option `-m` in MiB where no other key but maxmemory says it"),
    on("xcount", "as pegasus::ppn, which takes precedence"),
];

#[rustfmt::skip]
const SELECTOR_KEYS: &[Key] = &[
    on("execution.site", "site on which the job runs"),
    off("grid.jobtype", "", GLOBUS),
    on("pfn", "path of the program of the job"),
];

#[rustfmt::skip]
const METADATA_KEYS: &[Key] = &[
    on("*", "metadata of the job"),
];

#[rustfmt::skip]
const STAT_KEYS: &[Key] = &[
    off("*", "", "nothing reads statistics of profiles"),
];
