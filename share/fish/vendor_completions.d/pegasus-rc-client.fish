# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_pegasus_rc_client_global_optspecs
    string join \n c/conf= D= prefix= i/insert= d/delete= l/lookup= meta= v/verbose V/version h/help
end

function __fish_pegasus_rc_client_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_pegasus_rc_client_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_pegasus_rc_client_using_subcommand
    set -l cmd (__fish_pegasus_rc_client_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s c -l conf -d 'Read the properties that describe the catalog from FILE' -r -F
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s D -d 'Set a property' -r
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -l prefix -d 'Prefix of the properties that describe the catalog' -r
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s i -l insert -d 'Insert the entries in FILE: lines LFN PFN site="SITE" KEY="VALUE" … ("-" for stdin)' -r -F
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s d -l delete -d 'Delete the entries in FILE: lines LFN [PFN [site="SITE"]]' -r -F
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s l -l lookup -d 'Look up the logical names in FILE, one per line' -r -F
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -l meta -d 'Add metadata from these metadata files of jobs to the inserted entries' -r -F
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s v -l verbose -d 'Print more messages; repeatable'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s V -l version -d 'Print the version'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "insert" -d 'Insert one entry'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "lookup" -d 'Print the entries of logical names'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "list" -d 'Print all entries'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "delete" -d 'Delete one location of a logical name'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "remove" -d 'Delete all locations of logical names'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand insert" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand lookup" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand list" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand delete" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand remove" -s h -l help -d 'Print help'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "insert" -d 'Insert one entry'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "lookup" -d 'Print the entries of logical names'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "list" -d 'Print all entries'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "delete" -d 'Delete one location of a logical name'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "remove" -d 'Delete all locations of logical names'
complete -c pegasus-rc-client -n "__fish_pegasus_rc_client_using_subcommand help; and not __fish_seen_subcommand_from insert lookup list delete remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
