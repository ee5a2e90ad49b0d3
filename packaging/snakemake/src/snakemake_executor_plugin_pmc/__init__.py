"""Executor plugin for Snakemake: hands all jobs to one run of `pmc serve`.

The interface is that of `pmc add` and `pmc wait`: lines of JSON, see pmc-json in the manual of pmc.
"""

import os
import shlex
import tempfile
from dataclasses import dataclass, field
from typing import AsyncGenerator, List, Optional

from pmc_toolkit import Service, ServiceError
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import (
    CommonSettings,
    ExecutorSettingsBase,
)

@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    dir: Optional[str] = field(
        default=None,
        metadata={
            "help": "Directory of a run that was started by `pmc serve`. Without it, the plugin starts one, "
            "and ends it with the workflow.",
            "env_var": False,
            "required": False,
        },
    )
    options: Optional[str] = field(
        default=None,
        metadata={
            "help": "Options of the `pmc serve` that the plugin starts.",
            "env_var": False,
            "required": False,
        },
    )
    program: str = field(
        default="pmc",
        metadata={
            "help": "The program pmc.",
            "env_var": False,
            "required": False,
        },
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)

# Time between two looks at the ends that the service has reported, in seconds. A look asks nobody.
LOOK_INTERVAL = 0.1


def requests(job: JobExecutorInterface) -> dict:
    """Returns what a job requests, with the keys of `pmc add`."""
    resources = job.resources
    found = {"cpus": max(int(job.threads), 1)}
    for key, names in {"memory_mib": ("mem_mib", "mem_mb"), "gpus": ("gpu", "gpus")}.items():
        amount = next((resources.get(name) for name in names if isinstance(resources.get(name), int)), 0)
        if amount > 0:
            found[key] = amount
    runtime = resources.get("runtime")
    if isinstance(runtime, int) and runtime > 0:
        # Minutes.
        found["expected_seconds"] = runtime * 60
    # The highest priority of Snakemake is the largest number that there is.
    found["priority"] = min(int(job.priority), 2**31)
    return found


class Executor(RemoteExecutor):
    def __post_init__(self):
        self.next_seconds_between_status_checks = LOOK_INTERVAL
        settings = self.workflow.executor_settings
        directory = settings.dir
        options = shlex.split(settings.options or "")
        if directory is not None and options:
            raise WorkflowError("--pmc-options are those of a run that the plugin starts: leave out --pmc-dir")
        starts = directory is None
        if starts:
            base = os.path.abspath(os.path.join(".snakemake", "pmc"))
            os.makedirs(base, exist_ok=True)
            directory = tempfile.mkdtemp(prefix="run-", dir=base)
        try:
            self.service = Service(settings.program, directory, options if starts else None)
        except ServiceError as error:
            raise WorkflowError(str(error))
        self.logger.info(f"Jobs run in {self.service.directory}: pmc status shows them")

    def run_jobs(self, jobs: List[JobExecutorInterface]):
        tasks = []
        for job in jobs:
            self.run_job_pre(job)
            name = job.name if job.name.replace("_", "").isalnum() else "job"
            tasks.append({"command": self.format_job_exec(job), "name": name, **requests(job)})
        try:
            ids = self.service.add(tasks)
        except ServiceError as error:
            raise WorkflowError(f"{error}. --max-threads N lowers the threads of rules that no host has")
        for job, number in zip(jobs, ids):
            self.report_job_submission(SubmittedJobInfo(job=job, external_jobid=number))

    def run_job(self, job: JobExecutorInterface):
        self.run_jobs([job])

    async def check_active_jobs(
        self, active_jobs: List[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        for info in active_jobs:
            end = self.service.end_of(info.external_jobid)
            if end is None and self.service.has_ended():
                self.report_job_error(info, msg=f"The run in {self.service.directory} has ended. ")
            elif end is None:
                yield info
            elif end["state"] == "done":
                self.report_job_success(info)
            else:
                log = f"pmc log {info.external_jobid} {self.service.directory}"
                self.report_job_error(info, msg=f"{self.service.describe(end)}; its output: {log}. ")

    def cancel_jobs(self, active_jobs: List[SubmittedJobInfo]):
        self.service.cancel([info.external_jobid for info in active_jobs])

    def shutdown(self):
        super().shutdown()
        self.service.close()

    def get_job_exec_prefix(self, job: JobExecutorInterface):
        return f"cd {shlex.quote(os.getcwd())}"
