complete -c pegasus-integrity -l generate -d 'Print checksums in the format of sha256sum' -r
complete -c pegasus-integrity -l generate-yaml -d 'Print checksums as lines of an invocation record' -r
complete -c pegasus-integrity -l generate-fullstat-yaml -d 'Append entries of an invocation record to the file in KICKSTART_INTEGRITY_DATA, or print them' -r
complete -c pegasus-integrity -l generate-xmls -d 'Accepted, does nothing' -r
complete -c pegasus-integrity -l generate-fullstat-xmls -d 'Accepted, does nothing' -r
complete -c pegasus-integrity -l verify -d 'Compare files with the known checksums; "stdin" reads the list from standard input' -r
complete -c pegasus-integrity -l print-timings -d 'With --verify: write a record into the directory PEGASUS_MULTIPART_DIR'
complete -c pegasus-integrity -l debug -d 'Ignored'
complete -c pegasus-integrity -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pegasus-integrity -s V -l version -d 'Print version'
