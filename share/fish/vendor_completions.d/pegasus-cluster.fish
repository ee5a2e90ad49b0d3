complete -c pegasus-cluster -s S -d 'Treat this exit code of a command as success, too; may be repeated' -r
complete -c pegasus-cluster -s s -d 'Append records to FILE instead of printing them' -r -F
complete -c pegasus-cluster -s R -d 'Append a line to FILE when a command starts or ends [default: SEQEXEC_PROGRESS_REPORT]' -r -F
complete -c pegasus-cluster -s n -d 'Run N commands at a time; auto: as many as there are CPUs [default: SEQEXEC_CPUS, else 1]' -r
complete -c pegasus-cluster -s d -d 'Print every start and end of a command, in lines that begin with #'
complete -c pegasus-cluster -s e -d 'Exit with 0, even if commands fail'
complete -c pegasus-cluster -s f -d 'Start no further command after a failure [default: run all, exit with 5 if one failed]'
complete -c pegasus-cluster -s h -l help -d 'Print help'
complete -c pegasus-cluster -s V -l version -d 'Print version'
