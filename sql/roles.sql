-- Who may do what. Nobody gets a table: every right is EXECUTE on a function or SELECT on a view.
--
--   pgqueue_producer   enqueues, looks up what became of a job
--   pgqueue_worker     claims, reports, maintains; enqueues too
--   pgqueue_operator   cancels, retries, purges, pauses, configures; sees everything, payloads included
--   pgqueue_reader     sees the views without payloads
--
-- Grant them to your login roles: grant pgqueue_producer to shop_web. All functions are SECURITY DEFINER with
-- search_path = pgqueue, pg_temp; PUBLIC may execute none of them. A role that may not create roles installs
-- everything else; it then owns the schema and needs no grants.

do $$
declare
  v_role text;
  v_function regprocedure;
  v_may jsonb := '{
    "pgqueue_producer": ["enqueue", "enqueue_many", "enqueue_flow", "look_up", "look_up_flow"],
    "pgqueue_worker": ["enqueue", "enqueue_many", "enqueue_flow", "extend_flow", "look_up", "look_up_flow", "load_parents", "save_step", "load_steps", "log", "register_worker", "heartbeat", "retire_worker", "claim", "complete",
      "complete_and_claim", "fail", "release", "release_unknown", "snooze", "progress", "cancel_claimed", "throttle", "sweep", "sweep_limits", "promote", "refresh_hints",
      "ensure_partitions", "prune", "roll_up", "retry_delay", "drain_requested", "due_recurring", "tick", "mark_recurring", "reconcile_recurring"],
    "pgqueue_operator": ["stats", "list_jobs", "list_dead", "dead_groups", "count_jobs", "depth", "why", "why_queue", "held_snapshots", "doctor", "totals", "gauges", "recurring_health", "events", "set_events",
      "cancel_many", "drain", "timeline", "checks", "table_sizes", "record_audit", "look_up_flow", "list_flow", "cancel_flow",
      "look_up", "cancel", "retry", "retry_many", "purge", "pause", "resume", "set_queue", "delete_queue", "set_defaults", "pause_group",
      "resume_group", "pause_task", "resume_task", "set_task", "force_circuit", "sweep", "sweep_limits",
      "promote", "ensure_partitions", "prune", "retry_delay", "check_retry",
      "set_recurring", "remove_recurring", "pause_recurring", "resume_recurring", "run_recurring_now"],
    "pgqueue_reader": ["stats", "list_jobs", "list_dead", "dead_groups", "count_jobs", "depth", "why", "why_queue", "totals", "gauges", "recurring_health", "events",
      "timeline", "checks", "table_sizes", "look_up_flow", "list_flow"]
  }';
  v_sees jsonb := '{
    "pgqueue_producer": [],
    "pgqueue_worker": [],
    "pgqueue_operator": ["queue_status", "running_job", "dead_job", "ghost_job", "worker_status", "recent_failure", "attempt", "job_detail", "log_line", "step",
      "task_stats", "queue_stats", "group_status", "task_status", "flow_status", "recurring_status", "recurring_detail", "recurring_history",
      "job_status", "job_history", "audit_log"],
    "pgqueue_reader": ["queue_status", "running_job", "dead_job", "ghost_job", "worker_status", "recent_failure",
      "task_stats", "queue_stats", "group_status", "task_status", "flow_status", "recurring_status", "recurring_history",
      "job_status", "job_history", "audit_log"]
  }';
begin
  -- PostgreSQL lets PUBLIC execute every new function: taken back before anybody can see them.
  revoke all on schema pgqueue from public;
  revoke all on all functions in schema pgqueue from public;
  revoke all on all tables in schema pgqueue from public;
  revoke all on all sequences in schema pgqueue from public;

  for v_role in select jsonb_object_keys(v_may) loop
    begin
      if to_regrole(v_role) is null then execute format('create role %I nologin', v_role); end if;
    exception
      when duplicate_object or unique_violation then null;  -- another database of this cluster was first
      when insufficient_privilege then
        raise notice 'pgqueue: % may not create roles; % is missing', current_user, v_role;
        continue;
    end;
    execute format('grant usage on schema pgqueue to %I', v_role);
    execute format('revoke all on all functions in schema pgqueue from %I', v_role);
    execute format('revoke all on all tables in schema pgqueue from %I', v_role);
    for v_function in
      select p.oid::regprocedure from pg_proc p
      where p.pronamespace = 'pgqueue'::regnamespace and v_may -> v_role ? p.proname::text
    loop
      execute format('grant execute on function %s to %I', v_function, v_role);
    end loop;
    execute coalesce((select string_agg(format('grant select on pgqueue.%I to %I', view, v_role), ';')
                      from jsonb_array_elements_text(v_sees -> v_role) view), 'select 1');
  end loop;
end
$$;
