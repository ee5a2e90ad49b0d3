complete -c pegasus-lite -l part -d 'Read only LENGTH bytes of FILE, starting at byte START; large plans keep all descriptions in one file' -r
complete -c pegasus-lite -l cluster -d 'The job is a cluster, whose program reads files of its jobs in the submit directory; agents start it only on hosts that see this directory'
complete -c pegasus-lite -l env-sourced -d 'The script for the environment has run'
complete -c pegasus-lite -l inside -d 'This is the container of the job'
complete -c pegasus-lite -s h -l help -d 'Print help'
complete -c pegasus-lite -s V -l version -d 'Print version'
