// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// columns and rows of the terminal that is drawn.
	columns, rows = 120, 30
	// checkout is how the folder of the command is written, wherever it is.
	checkout = "~/weft"
)

// cast is a recording: what was printed, and when.
type cast struct {
	header header
	events []event
}

// header is the first line of an asciicast.
type header struct {
	Version int `json:"version"`
	Width   int `json:"width"`
	Height  int `json:"height"`
	// Timestamp is when the recording began, in seconds since 1970.
	Timestamp int64 `json:"timestamp"`
	// Command is what was run.
	Command string `json:"command"`
}

// event is text that was printed at once.
type event struct {
	at   time.Duration // since the recording began
	text string
}

// MarshalJSON writes the event as asciicasts have it: seconds, kind and text.
func (e event) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{float64(e.at.Milliseconds()) / 1000, "o", e.text})
}

// UnmarshalJSON reads an event of output. Those of input, and of marks, are errors.
func (e *event) UnmarshalJSON(data []byte) error {
	var fields []any
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	if len(fields) != 3 {
		return fmt.Errorf("an event has %d fields, not 3", len(fields))
	}
	seconds, isNumber := fields[0].(float64)
	kind, isKind := fields[1].(string)
	text, isText := fields[2].(string)
	if !isNumber || !isKind || !isText || kind != "o" {
		return fmt.Errorf("%s is no output event", data)
	}
	e.at, e.text = time.Duration(seconds*float64(time.Second)), text
	return nil
}

// readCast reads an asciicast of version 2 that holds output alone.
func readCast(r io.Reader) (cast, error) {
	var c cast
	decoder := json.NewDecoder(r)
	if err := decoder.Decode(&c.header); err != nil {
		return cast{}, err
	}
	if c.header.Version != 2 || c.header.Width < 1 || c.header.Height < 1 {
		return cast{}, fmt.Errorf("it is no asciicast of version 2 with a width and a height: %+v", c.header)
	}
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return cast{}, fmt.Errorf("event %d: %w", len(c.events)+1, err)
		}
		if n := len(c.events); n > 0 && e.at < c.events[n-1].at {
			return cast{}, fmt.Errorf("event %d is earlier than the one before it", n+1)
		}
		c.events = append(c.events, e)
	}
	if len(c.events) == 0 {
		return cast{}, errors.New("it has no events")
	}
	return c, nil
}

func (c cast) write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c.header); err != nil {
		return err
	}
	for _, e := range c.events {
		if err := encoder.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// recordFile runs a command and writes what it printed. A command that fails leaves no file: what is published is a
// run that ended well.
func recordFile(ctx context.Context, path string, command []string) error {
	folder, err := os.Getwd()
	if err != nil {
		return err
	}
	c, err := record(ctx, command, folder, os.Stdout, time.Now)
	if err != nil {
		return err
	}
	temporary := path + ".new"
	out, err := os.Create(temporary)
	if err != nil {
		return err
	}
	if err := errors.Join(c.write(out), out.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, path)
}

// record runs a command and keeps what it prints to either stream, line by line, and copies it to out. The name of
// folder, which is that of somebody's machine, becomes that of a checkout.
func record(ctx context.Context, command []string, folder string, out io.Writer, now func() time.Time) (cast, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // to run what it is given is what it is for
	// An interrupt is for the command to act on: it may have something to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	printed, err := cmd.StdoutPipe()
	if err != nil {
		return cast{}, err
	}
	cmd.Stderr = cmd.Stdout
	start := now()
	if err := cmd.Start(); err != nil {
		return cast{}, err
	}
	name := strings.Join(append([]string{filepath.Base(command[0])}, command[1:]...), " ")
	c := cast{header: header{Version: 2, Width: columns, Height: rows, Timestamp: start.Unix(), Command: name}}
	lines := bufio.NewReader(printed)
	for {
		line, readErr := lines.ReadString('\n')
		if line != "" {
			_, _ = io.WriteString(out, line)
			text := strings.ReplaceAll(strings.TrimRight(line, "\r\n"), folder, checkout)
			c.events = append(c.events, event{now().Sub(start), text + "\r\n"})
		}
		if readErr != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		return cast{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(c.events) == 0 {
		return cast{}, fmt.Errorf("%s printed nothing", name)
	}
	return c, nil
}
