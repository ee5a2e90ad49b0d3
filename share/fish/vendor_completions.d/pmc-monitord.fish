complete -c pmc-monitord -s a -l adjust -d 'Add this many seconds to the times of the log' -r
complete -c pmc-monitord -s j -l job -d 'Name of the log of states, instead of jobstate.log' -r -F
complete -c pmc-monitord -s o -l output-dir -d 'Directory for the log of states and the files monitord.*' -r -F
complete -c pmc-monitord -s d -l dest -d 'Database: sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE. By default the property pegasus.catalog.workflow.url, else a file beside the log' -r
complete -c pmc-monitord -l conf -d 'Properties to use instead of those of the run' -r -F
complete -c pmc-monitord -l notifications-max -d 'Commands of notifications at a time; 0 sends none [default: the property pegasus.monitord.notifications.max, else 10]' -r
complete -c pmc-monitord -l notifications-timeout -d 'Time limit of the commands of notifications; 0 is none [default: the property pegasus.monitord.notifications.timeout, else 0]' -r
complete -c pmc-monitord -s S -l sim -d 'Pause after each line of the log' -r
complete -c pmc-monitord -s r -l replay -d 'Load the log from its beginning, and do not wait for new lines'
complete -c pmc-monitord -s N -l condor-daemon -d 'Start a new process group'
complete -c pmc-monitord -l no-events -d 'Write the log of states, but no database'
complete -c pmc-monitord -l no-dashboard -d 'Do not update the list of all workflows of this user, ~/.pegasus/workflow.db'
complete -c pmc-monitord -l skip-stdout -d 'Do not store the output of jobs'
complete -c pmc-monitord -l no-notifications -l no-notification -d 'Send no notifications'
complete -c pmc-monitord -s v -l verbose -d 'Print a summary at the end'
complete -c pmc-monitord -l no-recursive -d 'Do not load nested sub-workflows. Also with an absolute FILE of -j'
complete -c pmc-monitord -l keep-state -d 'An option of pegasus-monitord without effect, like all that follow'
complete -c pmc-monitord -l db-stats
complete -c pmc-monitord -l fast-start
complete -c pmc-monitord -s f -l force
complete -c pmc-monitord -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pmc-monitord -s V -l version -d 'Print version'
