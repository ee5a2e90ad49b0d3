complete -c pegasus-kickstart -s n -d 'transformation, namespace::name:version' -r
complete -c pegasus-kickstart -s N -d 'id of the task in the abstract workflow' -r
complete -c pegasus-kickstart -s R -d 'site' -r
complete -c pegasus-kickstart -s L -d 'label of the workflow' -r
complete -c pegasus-kickstart -s T -d 'time of the abstract workflow' -r
complete -c pegasus-kickstart -s w -d 'working directory' -r
complete -c pegasus-kickstart -s W -d 'working directory; it is made if it does not exist' -r
complete -c pegasus-kickstart -s i -d 'standard input of the program; - is that of kickstart (default: /dev/null)' -r
complete -c pegasus-kickstart -s o -d 'standard output of the program; - is that of kickstart, !FILE appends, ^FILE renames an existing file to FILE.000 and so on (default: into the record)' -r
complete -c pegasus-kickstart -s e -d 'standard error of the program, with the same forms as -o' -r
complete -c pegasus-kickstart -s l -d 'append the record to FILE; if that fails, it goes to standard output with a warning (default: standard output)' -r
complete -c pegasus-kickstart -s B -d 'characters of captured output to keep, counted from the end, or all, which is up to 256 MiB (default: 262144)' -r
complete -c pegasus-kickstart -s S -d 'record size, times and owner of FILE before the run; LFN=FILE gives its logical name, @LIST names a file with one such entry per line; may be repeated' -r
complete -c pegasus-kickstart -s s -d 'the same after the run, with SHA-256' -r
complete -c pegasus-kickstart -s k -d 'send SIGTERM after this time (default: 0, never)' -r
complete -c pegasus-kickstart -s K -d 'send SIGKILL this long after SIGTERM (default: 5)' -r
complete -c pegasus-kickstart -s I -d 'read program and arguments from FILE, one per line; must be the last option' -r
complete -c pegasus-kickstart -s q -d 'leave captured output out of the record if the jobs succeed'
complete -c pegasus-kickstart -s f -d 'put environment and limits in the record even if the jobs succeed'
complete -c pegasus-kickstart -s H -d 'leave the machine out of the record'
complete -c pegasus-kickstart -s M -d 'fail if a FILE of -s is missing after a successful run, as for files after the line "# required" of a LIST'
complete -c pegasus-kickstart -s X -d 'make the program executable first'
complete -c pegasus-kickstart -s F -d 'sync the record to disk'
complete -c pegasus-kickstart -s c -d 'ignored'
complete -c pegasus-kickstart -s V -d 'print the version of Pegasus that this program is compatible with'
complete -c pegasus-kickstart -l version -d 'print the version of this program'
complete -c pegasus-kickstart -s h -d 'print this text and exit with 127, as -?'
complete -c pegasus-kickstart -s ? -d 'print this text and exit with 127, as -h'
complete -c pegasus-kickstart -l help -d 'print this text'
