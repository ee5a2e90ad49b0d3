#!/bin/sh
# Adds the numbers from 1 to $1. Goes on where an earlier attempt has saved its state.
step=0 sum=0
if pmc checkpoint get state state.txt; then
    read -r step sum <state.txt
fi
while [ "$step" -lt "$1" ]; do
    step=$((step + 1)) sum=$((sum + step))
    sleep 0.02 # for the work of a step
    if [ $((step % 10)) = 0 ] || pmc checkpoint due; then
        echo "$step $sum" >state.txt
        pmc checkpoint put state state.txt
    fi
done
echo "The sum is $sum"
