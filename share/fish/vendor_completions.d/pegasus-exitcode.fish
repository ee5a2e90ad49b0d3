complete -c pegasus-exitcode -s r -l return -d 'Exit code of the job that DAGMan reports' -r
complete -c pegasus-exitcode -s R -l retry -d 'Number of the retry that DAGMan reports' -r
complete -c pegasus-exitcode -s f -l failure-message -d 'A text that only the output of a job that failed has; `+` stands for a blank' -r
complete -c pegasus-exitcode -s s -l success-message -d 'A text that the output of each job that succeeded has; `+` stands for a blank' -r
complete -c pegasus-exitcode -s l -l log -d 'Log that gets a line about the job, instead of standard output' -r -F
complete -c pegasus-exitcode -s M -l metadata-log -d 'Log that gets the metadata of the files of all jobs' -r -F
complete -c pegasus-exitcode -s U -l update-submit-file -d 'After a failure, apply the expressions in the submit description of the job'
complete -c pegasus-exitcode -s n -l no-rename -d 'Keep the names of the output files'
complete -c pegasus-exitcode -s N -l no-metadata -d 'Write no file with metadata'
complete -c pegasus-exitcode -s I -l no-invocations -d 'The output has no invocation records'
complete -c pegasus-exitcode -s h -l help -d 'Print help'
complete -c pegasus-exitcode -s V -l version -d 'Print version'
