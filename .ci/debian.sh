# Sourced by deploy_tools and browser_tools, with $folder and $bin set. Provides programs from PATH, or unpacked from
# the distribution's packages, without root and without starting services.

missing() { # print the given programs that are neither in $bin nor on PATH; link those on PATH
    local program found
    for program; do
        [ -x "$bin/$program" ] && continue
        if found=$(PATH=$PATH:/usr/sbin:/sbin type -P "$program"); then
            ln -sfn "$found" "$bin/$program"
        else
            echo "$program"
        fi
    done
}

from_debian() { # NAME "PACKAGE ..." PROGRAM ...: unpack into $folder/NAME, with a script for each program in $bin
    local packages=$folder/$1 wanted package program found libraries fonts=
    read -ra wanted <<<"$2"
    shift 2
    type -P apt-get dpkg >/dev/null || {
        echo "$0: $* not found on PATH, and apt-get is not available: install ${wanted[*]}" >&2
        exit 1
    }
    echo "fetching $* from the distribution's packages"
    rm -rf "$packages"
    mkdir -p "$packages/lists/partial" "$packages/cache/archives/partial" "$packages/root"
    # Separate lists and archives, because the machine's belong to root and may be empty.
    local options=(-qq -o "Dir::State::Lists=$packages/lists" -o "Dir::Cache=$packages/cache"
        -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    # Download the packages and their missing dependencies.
    apt-get "${options[@]}" install --yes --no-install-recommends --download-only "${wanted[@]}"
    for package in "$packages"/cache/archives/*.deb; do
        dpkg -x "$package" "$packages/root"
    done
    rm -rf "$packages/lists" "$packages/cache"
    libraries=$(find "$packages/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
    [ -e /etc/fonts/fonts.conf ] || fonts="FONTCONFIG_PATH=$(printf %q "$packages/root/etc/fonts")"
    for program; do
        # Chromium's /usr/bin script looks for the program at its installed path.
        found=$packages/root/usr/lib/$program/$program
        [ -x "$found" ] || found=$(echo "$packages"/root/usr/*bin/"$program")
        [ -x "$found" ] || {
            echo "$0: the distribution's packages ${wanted[*]} have no $program (Ubuntu's Chromium is a snap):" \
                "install it and add it to PATH" >&2
            exit 1
        }
        rm -f "$bin/$program" # otherwise a link to a program on PATH would be overwritten
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%q XDG_DATA_HOME=%q %s exec %q "$@"\n' "$libraries" \
            "$packages/root/usr/share" "$fonts" "$found" >"$bin/$program"
        chmod +x "$bin/$program"
    done
}
